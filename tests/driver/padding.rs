//! The scrub and the landing through the public interface, on the driver under test: any element type, any strides, nothing else touched.

use crate::support::{Rig, assert_same};
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::tensor::Element;
use breakable_cuda_graph::{BreakableCapture, ReplayOptions, Tensor, break_point, scrub_padding_tail};

/// Views of a tensor of `[6, 8]`, whose rows and columns are cut and exchanged in all ways that change alignment or order.
fn views(whole: &Tensor) -> Vec<Tensor> {
    let cut = |rows: (usize, usize), columns: (usize, usize)| {
        let part = whole.narrow(0, rows.0, rows.1).and_then(|part| part.narrow(1, columns.0, columns.1));
        part.expect("a view")
    };
    let mut views = vec![whole.clone()];
    views.extend([(0, 7), (1, 7), (1, 5), (4, 4), (3, 1)].map(|columns| cut((0, 6), columns)));
    views.extend([(1, 5), (2, 3), (5, 1)].map(|rows| cut(rows, (0, 8))));
    views.push(whole.reshape(&[3, 2, 8]).and_then(|cube| cube.transpose(0, 1)).expect("a view"));
    views.push(whole.reshape(&[48]).expect("a view"));
    let flipped: Vec<Tensor> = views.iter().filter(|view| view.layout().rank() > 1).cloned().collect();
    views.extend(flipped.iter().map(|view| view.transpose(0, 1).expect("a view")));
    views
}

fn scrub_all<T: Element + From<u8> + PartialEq + std::fmt::Debug>(rig: &Rig) {
    let ones = [T::from(1); 48];
    let whole = Tensor::from_slice(&rig.stream, &ones, &[6, 8]).expect("a tensor");
    for view in views(&whole) {
        for rows in 0..=view.rows() {
            whole.write(&rig.stream, &ones).expect("a write");
            scrub_padding_tail(&rig.stream, rows, [&view]).expect("a scrub");
            let got: Vec<T> = view.read(&rig.stream).expect("a read");
            let kept = view.elements() / view.rows() * rows;
            let case = format!("{} of {:?}, {rows} rows", T::DTYPE, view.layout());
            assert!(got[..kept].iter().all(|value| *value == T::from(1)), "{case}: the valid rows");
            assert!(got[kept..].iter().all(|value| *value == T::from(0)), "{case}: the tail");
            let all: Vec<T> = whole.read(&rig.stream).expect("a read");
            let zeros = all.iter().filter(|value| **value == T::from(0)).count();
            assert_eq!(zeros, view.elements() - kept, "{case}: nothing but the tail");
        }
    }
}

#[test]
fn tails_of_any_element_size_and_strides_are_scrubbed() {
    let rig = Rig::new(&crate::support::driver());
    scrub_all::<u8>(&rig);
    scrub_all::<u16>(&rig);
    scrub_all::<f32>(&rig);
    scrub_all::<u64>(&rig);
}

#[test]
fn many_tensors_are_scrubbed_sixteen_in_a_launch() {
    let driver = crate::support::driver().intercepted();
    let rig = Rig::new(&driver);
    let tensors: Vec<Tensor> = (1..=33).map(|rows| rig.ones(&[rows, 5])).collect();
    // The library's module is loaded by the first.
    scrub_padding_tail(&rig.stream, 0, [&rig.ones(&[1])]).expect("a scrub");
    let launches = || driver.intercept().expect("a watched driver").successes(Call::cuLaunchKernel);
    let before = launches();
    scrub_padding_tail(&rig.stream, 1, &tensors).expect("a scrub");
    assert_eq!(launches() - before, 2, "the first tensor has no tail, which leaves 32");
    for tensor in &tensors {
        let values = rig.read(tensor);
        assert_same(&values[..5], &[1.0; 5]);
        assert_same(&values[5..], &vec![0.0; values.len() - 5]);
    }
}

/// A break's result with any strides is landed in a handoff without gaps, with the tail zeroed by the same launch.
#[test]
fn results_of_any_strides_are_landed() {
    let rig = Rig::new(&crate::support::driver());
    let values: Vec<f32> = (1..=48).map(|value| value as f32).collect();
    let whole = Tensor::from_slice(&rig.stream, &values, &[6, 8]).expect("a tensor");
    for view in views(&whole) {
        let result = view.clone();
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let landed = capture.record(&rig.stream, |_| {
            let input = rig.ops.scale(&whole, 1.0)?;
            break_point("a view", [&input], move |_| Ok(result.clone()))
        });
        let landed = landed.expect("a recording");
        let expected = rig.read(&view);
        let row = view.elements() / view.rows();
        for valid in (0..=view.rows()).rev() {
            let options = ReplayOptions::default().valid_rows(valid);
            let _ = capture.replay_with(&rig.stream, options).expect("a replay");
            let got = rig.read(&landed);
            assert_same(&got[..valid * row], &expected[..valid * row]);
            assert_same(&got[valid * row..], &vec![0.0; (view.rows() - valid) * row]);
        }
    }
}
