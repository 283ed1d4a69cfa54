//! What the reference driver is for: work that nothing orders, memory used after its free and bytes never written show up, and it plays other
//! machines on request.

use crate::support::demo::options;
use crate::support::{Rig, SEEDS, assert_same, reference};
use breakable_cuda_graph::driver::{Device, DeviceBuffer, Event, MemoryPool, Stream};
use breakable_cuda_graph::reference::Options;
use breakable_cuda_graph::sys::{CUresult, Call, CallError, LoadError};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Error, Misuse, Tensor};

/// Two kernels on two streams, the second reading what the first writes; ordered by an event, or not.
fn two_streams(seed: u64, ordered: bool) -> Vec<f32> {
    let rig = Rig::new(&reference(seed));
    let (one, two) = (Stream::new(&rig.context).expect("a stream"), Stream::new(&rig.context).expect("a stream"));
    let [x, y, z] =
        [1.0, 5.0, 9.0].map(|value: f32| Tensor::from_slice(&rig.stream, &[value; 4], &[4]).expect("a tensor"));
    rig.ops.scale_into(&one, &x, 2.0, &y).expect("a launch");
    if ordered {
        let event = Event::new(&rig.context).expect("an event");
        event.record(&one).expect("recorded");
        two.wait(&event).expect("waits");
    }
    rig.ops.scale_into(&two, &y, 10.0, &z).expect("a launch");
    z.read(&two).expect("a read")
}

#[test]
fn a_missing_dependency_is_a_wrong_answer_for_some_seed_and_a_present_one_never() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..SEEDS {
        assert_same(&two_streams(seed, true), &[20.0; 4]);
        assert_eq!(two_streams(seed, false), two_streams(seed, false), "the same seed, the same order");
        match two_streams(seed, false)[0] {
            20.0 => right += 1,
            _ => wrong += 1,
        }
    }
    assert!(right > 0 && wrong > 0, "{right} right, {wrong} wrong");
}

#[test]
fn memory_that_was_never_written_reads_as_nan() {
    for seed in 0..SEEDS {
        let rig = Rig::new(&reference(seed));
        let tensor = Tensor::allocate(&rig.context, DType::F32, &[8]).expect("a tensor");
        assert!(rig.read(&tensor).iter().all(|value| value.is_nan()));
    }
}

#[test]
fn use_after_free_is_an_error_with_a_text() {
    let rig = Rig::new(&reference(1));
    let buffer = DeviceBuffer::new(&rig.context, 64).expect("a buffer");
    // SAFETY: that it is freed too early is what is tested; the reference driver does not touch it then.
    let alias = unsafe { DeviceBuffer::borrow_raw(&rig.context, buffer.address(), 64, None) };
    let layout = Layout::contiguous(&[16]).expect("a layout");
    let alias = Tensor::from_buffer(alias, DType::F32, layout).expect("a tensor");
    drop(buffer);
    let target = rig.zeros(&[16]);
    rig.ops.scale_into(&rig.stream, &alias, 2.0, &target).expect("it is enqueued");
    let error = rig.stream.synchronize().expect_err("it fails when it runs");
    let Error::Call(error) = error else { panic!("{error:?}") };
    assert_eq!(error.code(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let diagnostics = rig.driver.ref_driver().expect("the reference driver").diagnostics();
    assert!(
        diagnostics.iter().any(|text| text.contains("demo_scale") && text.contains("not allocated")),
        "{diagnostics:?}"
    );
}

#[test]
fn stream_ordered_memory_is_used_in_the_order_of_its_stream() {
    for seed in 0..SEEDS {
        let rig = Rig::new(&reference(seed));
        let pool = MemoryPool::new(&rig.context).expect("a pool");
        let layout = Layout::contiguous(&[4]).expect("a layout");
        let mut last = rig.ones(&[4]);
        for _ in 0..5 {
            // Each is freed when the next has been made from it, and its memory taken again at once.
            let buffer = pool.allocate(16, &rig.stream).expect("memory");
            let next = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
            rig.ops.scale_into(&rig.stream, &last, 2.0, &next).expect("a launch");
            last = next;
        }
        assert_same(&rig.read(&last), &[32.0; 4]);
        assert!(rig.driver.ref_driver().expect("the reference driver").diagnostics().is_empty());
        assert!(pool.usage().expect("usage").used <= 1024, "blocks are taken again");
    }
}

#[test]
fn nothing_is_left_when_everything_is_dropped() {
    let driver = reference(3);
    let live = || driver.ref_driver().expect("the reference driver").object_counts();
    let before = live();
    {
        let rig = Rig::new(&driver);
        let input = rig.random(1, &[4, 8]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.relu(&input)).expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        // Not waited for.
        drop(capture);
        drop(out);
        assert_ne!(live(), before);
    }
    assert_eq!(live(), before);
}

#[test]
fn other_devices_are_played_on_request() {
    let old = Driver::reference_with(Options::default().version(11_080));
    assert!(matches!(old, Err(LoadError::TooOld { have: 11_080, .. })), "{old:?}");
    let lacking = Driver::reference_with(Options::default().missing(Call::cuGraphLaunch));
    assert!(matches!(lacking, Err(LoadError::MissingCall { call: Call::cuGraphLaunch, .. })), "{lacking:?}");
    let none = Driver::reference_with(Options::default().devices(0));
    assert!(matches!(none, Err(LoadError::NoDevice { .. })), "{none:?}");

    // The oldest that will do: it works, and lacks what is newer.
    let driver = Driver::reference_with(options().version(12_000)).expect("12.0 will do");
    assert!(!driver.supports(Call::cuFuncGetParamInfo) && driver.supports(Call::cuGraphLaunch));
    let rig = Rig::new(&driver);
    let input = rig.random(1, &[4, 8]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let _out = capture.record(&rig.stream, |_| rig.ops.relu(&input)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let (kernel, ..) = rig.ops.scale_raw(&input, 1.0, &input).expect("a kernel");
    let error = kernel.parameters().expect_err("newer than the driver");
    let Error::Call(CallError::Unsupported { call, needs, have, .. }) = error else { panic!("{error:?}") };
    assert_eq!((call, needs, have), (Call::cuFuncGetParamInfo, 12_040, 12_000));

    let driver = Driver::reference_with(options().memory_pools(false)).expect("it loads");
    let context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
    let refused = CapturePool::new(&context);
    assert!(matches!(refused, Err(Error::PoolsUnsupported { .. })), "{refused:?}");
}

#[test]
fn drivers_share_nothing() {
    let (one, two) = (reference(1), reference(2));
    let rig = Rig::new(&one);
    let other = Rig::new(&two);
    assert!(rig.context != other.context);
    let input = rig.random(1, &[4]);
    let refused = other.ops.scale_into(&other.stream, &input, 1.0, &input);
    assert!(matches!(refused, Err(Error::Misuse(Misuse::ContextMismatch { .. }))), "{refused:?}");
}
