//! DLPack views of device tensors, and what their C side allocates.

use breakable_cuda_graph::tensor::dlpack::{DlDevice, DlpackView, ManagedTensor, ManagedTensorVersioned};
use breakable_cuda_graph::{Tensor, weak_ref};
use std::path::Path;
use std::process::Command;

/// Compiles the C side with counting in place of malloc and free, and runs it: a deleter frees one allocation, and a failing one is told.
#[test]
fn a_deleter_frees_its_description_and_nothing_else() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).expect("a folder for the program");
    let program = folder.join("descriptions");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = Command::new(compiler);
    compile
        .arg("-std=c11")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("csrc"))
        .arg("-I")
        .arg(root.join("csrc/include"));
    compile.arg(root.join("tests/driver/dlpack/descriptions.c")).arg("-o").arg(&program);
    let compiled = compile.output().expect("a C compiler, as for the crate's build");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let checked = Command::new(&program).status().expect("the program runs");
    assert_eq!(checked.code(), Some(0), "the number of the check that failed in descriptions.c");
}

/// A view names the device memory, and neither making nor dropping it is a driver call or keeps the memory.
#[test]
fn a_view_of_a_device_tensor_owns_nothing() {
    let driver = crate::support::driver();
    let rig = crate::support::Rig::new(&driver);
    let whole = Tensor::from_slice(&rig.stream, &[1.0_f32; 12], &[3, 4]).expect("a tensor");
    let tensor = whole.narrow(1, 1, 3).expect("a view");
    let weak = weak_ref(&tensor).expect("a device tensor");

    let view: DlpackView<ManagedTensor> = DlpackView::of(&weak.upgrade().expect("live"));
    let described = view.tensor();
    assert_eq!(described.data.addr() as u64, tensor.address());
    let ordinal = rig.context.device().ordinal() as i32;
    assert_eq!(described.device, DlDevice { kind: DlDevice::CUDA, id: ordinal });
    // SAFETY: the description has two of each.
    let [shape, strides] =
        [described.shape, described.strides].map(|list| unsafe { core::slice::from_raw_parts(list, 2) });
    assert_eq!((shape, strides), (&[3, 3][..], &[4, 1][..]));

    drop((whole, tensor));
    assert!(weak.upgrade().is_err(), "the view keeps nothing");
    drop(view);
    let versioned: DlpackView<ManagedTensorVersioned> = DlpackView::of(&rig.ones(&[2]));
    assert_eq!(versioned.tensor().rank, 1);
}
