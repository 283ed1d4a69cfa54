//! One entry for each context of the driver: values of it that were obtained apart share open captures, waiting drops and the crate's kernels.

use crate::support::{Ledger, Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::driver::{Context, Device, DeviceBuffer, Stream};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{BreakableCapture, CapturePool, Error, Misuse, Tensor, scrub_padding_tail};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn another_value(rig: &Rig) -> Context {
    Device::get(&rig.driver, 0).expect("a device").primary_context().expect("its context")
}

#[test]
fn values_of_one_context_are_equal_however_they_were_obtained() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let again = another_value(&rig);
        // SAFETY: the context lives as long as the rig.
        let borrowed = unsafe { Context::borrow_raw(&rig.driver, rig.context.as_raw(), None) }.expect("a context");
        assert!(again == rig.context && borrowed == rig.context && again == borrowed);
        // SAFETY: likewise.
        let copy = unsafe { Context::borrow_raw(&rig.driver.intercepted(), rig.context.as_raw(), None) };
        assert!(copy.expect("a context") == rig.context, "an intercepted driver is the same to the device");
        let stream = Stream::new(&again).expect("a stream");
        let tensor = Tensor::from_slice(&stream, &[3.0_f32; 4], &[4]).expect("a tensor");
        assert_same(&tensor.read(&rig.stream).expect("a stream of the same context"), &[3.0; 4]);
    });
}

#[cfg(not(feature = "driver-tests"))]
#[test]
fn contexts_of_two_drivers_are_not_equal() {
    let [one, two] = [1, 1].map(|seed| Rig::new(&crate::support::reference(seed)));
    assert!(one.context != two.context);
}

/// A drop through another value of the context waits for the capture too: by itself it would end it.
#[test]
fn drops_of_all_values_wait_for_an_open_capture() {
    for_each_driver(|driver| {
        let rig = Rig::new(&driver.intercepted());
        let again = another_value(&rig);
        let watch = rig.driver.intercept().expect("an intercepted driver");
        let buffer = DeviceBuffer::new(&again, 64).expect("a buffer");
        let (x, freed) = (rig.ones(&[8]), watch.count(Call::cuMemFree_v2));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |_| {
                drop(buffer);
                assert_eq!([&rig.context, &again].map(Context::queued_drops), [1, 1]);
                assert_eq!(watch.count(Call::cuMemFree_v2), freed, "not yet");
                let out = rig.ops.scale(&x, 2.0)?;
                // The value itself goes, and what is queued waits on.
                drop(again);
                Ok(out)
            })
            .expect("the capture is whole");
        assert_eq!((rig.context.queued_drops(), watch.count(Call::cuMemFree_v2)), (0, freed + 1));
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[2.0; 8]);
    });
}

/// The crate's kernels are loaded once for a context, and stay until its last value goes.
#[test]
fn the_kernels_are_loaded_once_and_go_with_the_last_value() {
    let driver = driver().intercepted();
    let watch = driver.intercept().expect("an intercepted driver");
    let baseline = Ledger::of(&driver);
    let contexts = [0, 1].map(|_| Device::get(&driver, 0).expect("a device").primary_context().expect("a context"));
    let loaded = watch.count(Call::cuModuleLoadDataEx);
    let pools = contexts.each_ref().map(|context| CapturePool::new(context).expect("a pool"));
    assert_eq!(watch.count(Call::cuModuleLoadDataEx), loaded + 1);
    drop(pools);
    let [first, second] = contexts;
    drop(first);
    let stream = Stream::new(&second).expect("a stream");
    let tensor = Tensor::from_slice(&stream, &[1.0_f32; 4], &[4]).expect("a tensor");
    scrub_padding_tail(&stream, 1, [&tensor]).expect("the kernel is there");
    assert_same(&tensor.read(&stream).expect("values"), &[1.0, 0.0, 0.0, 0.0]);
    drop((tensor, stream, second));
    assert_eq!(Ledger::of(&driver), baseline);
}

/// What is set on one value holds for all, and for as long as there is one.
#[test]
fn the_hook_of_drops_is_the_contexts() {
    let driver = driver().intercepted();
    let watch = driver.intercept().expect("an intercepted driver");
    let context = || Device::get(&driver, 0).expect("a device").primary_context().expect("a context");
    let told = Arc::new(AtomicUsize::new(0));
    let failing_drop = |context: &Context| {
        let buffer = DeviceBuffer::new(context, 64).expect("a buffer");
        let code = CUresult::CUDA_ERROR_UNKNOWN;
        watch.fail(Fault { call: Some(Call::cuMemFree_v2), after: 0, code });
        drop(buffer);
        assert_eq!(watch.clear_fault(), [Call::cuMemFree_v2]);
    };
    let (first, second) = (context(), context());
    let counter = told.clone();
    first.on_drop_error(Some(Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    })));
    failing_drop(&second);
    assert_eq!(told.load(Ordering::Relaxed), 1);
    drop((first, second));
    failing_drop(&context());
    assert_eq!(told.load(Ordering::Relaxed), 1, "another entry");
}

/// Another thread is told that a stream is captured without a call of the driver.
#[test]
fn an_open_capture_is_seen_from_every_thread() {
    for_each_driver(|driver| {
        let rig = Rig::new(&driver.intercepted());
        let (watch, stream) = (rig.driver.intercept().expect("intercepted"), rig.pool.capture_stream().clone());
        let x = rig.ones(&[8]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |_| {
                let asked = watch.count(Call::cuStreamIsCapturing);
                let id = std::thread::scope(|scope| scope.spawn(|| stream.id()).join().expect("no panic"));
                let refused = matches!(id, Err(Error::Misuse(Misuse::WouldInvalidate { call: Call::cuStreamGetId })));
                assert!(refused, "{id:?}");
                assert_eq!(watch.count(Call::cuStreamIsCapturing), asked);
                rig.ops.scale(&x, 2.0)
            })
            .expect("the capture is whole");
        assert!(std::thread::scope(|scope| scope.spawn(|| stream.id().is_ok()).join().expect("no panic")));
    });
}
