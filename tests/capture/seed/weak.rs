//! Weak references.

use crate::support::{assert_same, for_each_seed};
use breakable_cuda_graph::{Tensor, weak_ref};

#[test]
fn alias_without_ownership() {
    for_each_seed(|rig| {
        let whole = Tensor::from_slice(&rig.stream, &[0.0_f32; 12], &[3, 4]).expect("a tensor");
        let x = whole.narrow(1, 1, 3).expect("a view");
        let weak = weak_ref(&x).expect("a device tensor");
        let weak = weak.as_weak().expect("a device tensor").clone();
        assert_eq!(weak.address(), x.address());
        assert_eq!(weak.layout().strides(), x.strides());
        assert_eq!(weak.dtype(), x.dtype());
        whole.write(&rig.stream, &[3.0_f32; 12]).expect("a write");
        assert_same(&rig.read(&weak.upgrade().expect("live")), &[3.0; 9]);

        // It owns nothing.
        drop((whole, x));
        assert!(!weak.is_live());
        assert!(weak.upgrade().is_err());

        assert!(weak_ref(None).is_none());
        let host = Tensor::host(&[1.0_f32, 1.0], &[2]).expect("a host tensor");
        let same = weak_ref(&host).expect("a tensor").upgrade().expect("the tensor");
        assert!(same.is_same(&host), "a host tensor comes back as it is");
    });
}
