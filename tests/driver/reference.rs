//! What the reference driver is for: work that nothing orders, memory used after its free and bytes never written show up, and it plays other
//! machines on request.

use crate::support::demo::options;
use crate::support::{Rig, SEEDS, assert_same, reference};
use breakable_cuda_graph::driver::{Device, DeviceBuffer, Event, MemoryPool, Stream};
use breakable_cuda_graph::reference::Options;
use breakable_cuda_graph::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemLocationType, CUresult, CUstreamCaptureMode, Call,
    CallError, LoadError,
};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Error, Misuse, Tensor};
use std::ptr::null_mut;

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

/// What comes of it depends on the order of the bytes.
#[test]
fn a_kernel_that_writes_past_its_memory_is_told_of() {
    let rig = Rig::new(&reference(0));
    let (x, y) = (rig.ones(&[100]), rig.zeros(&[99]));
    // As many elements as the longer one has.
    let long = rig.zeros(&[100]);
    let (kernel, config, mut values) = rig.ops.scale_raw(&x, 2.0, &long).expect("a kernel");
    let target = values.iter_mut().find(|value| **value == long.address()).expect("its target");
    *target = y.address();
    let mut pointers = values.each_ref().map(|value| core::ptr::from_ref(value).cast_mut().cast());
    // SAFETY: the fault that is looked for; the reference driver has a guard there.
    unsafe { kernel.launch_raw(&rig.stream, config, &mut pointers).expect("launched") };
    let error = rig.stream.synchronize().expect_err("a kernel wrote where nothing is");
    assert_eq!(error.driver_call().expect("a call").code(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let told = diagnostics(&rig);
    assert!(told.iter().any(|text| text.contains("demo_scale") && text.contains("the 396 bytes")), "{told:?}");
}

#[test]
fn a_copy_onto_itself_is_told_of_and_leaves_nothing_defined() {
    for (from, to, overlaps) in [(0, 4, true), (4, 0, true), (0, 8, false), (0, 0, false)] {
        let rig = Rig::new(&reference(1));
        let x = rig.ones(&[16]);
        let (from, to) = (x.address() + 4 * from, x.address() + 4 * to);
        // SAFETY: eight elements each, of sixteen.
        unsafe { rig.driver.cuMemcpyDtoDAsync_v2(to, from, 32, rig.stream.as_raw()).expect("the driver takes it") };
        assert_eq!(rig.read(&x).iter().any(|value| value.is_nan()), overlaps);
        let told = diagnostics(&rig);
        assert_eq!(
            told.iter().filter(|text| text.contains("overlaps itself")).count(),
            usize::from(overlaps),
            "{told:?}"
        );
    }
}

fn diagnostics(rig: &Rig) -> Vec<String> {
    rig.driver.ref_driver().expect("the reference driver").diagnostics()
}

/// Memory at a reserved address, made by the raw calls.
fn map(rig: &Rig) -> u64 {
    let bytes = 2 << 20;
    let (mut address, mut memory) = (0, 0);
    // SAFETY: all-zero is a value of these plain structures, in which the ordinary memory of device 0 is asked for; valid places.
    unsafe {
        let (mut properties, mut access): (CUmemAllocationProp, CUmemAccessDesc) =
            (std::mem::zeroed(), std::mem::zeroed());
        let location: [u32; 2] = [CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0, 0];
        properties.location = std::mem::transmute_copy(&location);
        access.location = properties.location;
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        rig.driver.cuCtxSetCurrent(rig.context.as_raw()).expect("current");
        rig.driver.cuMemAddressReserve(&mut address, bytes, 0, 0, 0).expect("addresses");
        rig.driver.cuMemCreate(&mut memory, bytes, &properties, 0).expect("memory");
        rig.driver.cuMemMap(address, bytes, 0, memory, 0).expect("mapped");
        rig.driver.cuMemSetAccess(address, bytes, &access, 1).expect("usable");
    }
    address
}

/// The driver does not promise to wait for it.
#[test]
fn memory_that_is_unmapped_under_work_is_told_of_for_the_orders_in_which_the_work_waits() {
    let (mut told, mut quiet) = (0, 0);
    for seed in 0..SEEDS {
        for waited in [false, true] {
            let rig = Rig::new(&reference(seed));
            let address = map(&rig);
            // SAFETY: memory that was just mapped; and that it is unmapped too early is what is tested.
            let unmapped = unsafe {
                rig.driver.cuMemsetD8Async(address, 1, 64, rig.stream.as_raw()).expect("it is enqueued");
                if waited {
                    rig.stream.synchronize().expect("it ran");
                }
                rig.driver.cuMemUnmap(address, 2 << 20)
            };
            unmapped.expect("it waits for nothing");
            let (diagnostics, ran) = (diagnostics(&rig), rig.stream.synchronize());
            let is_told = diagnostics.iter().any(|text| text.contains("unmapped while a memset"));
            assert_eq!(is_told, ran.is_err(), "{diagnostics:?}");
            assert!(!(waited && is_told), "{diagnostics:?}");
            told += usize::from(is_told);
            quiet += usize::from(!is_told && !waited);
        }
    }
    assert!(told > 0 && quiet > 0, "{told} told, {quiet} ran before");
}

/// The driver looks at the functions of the exec's nodes, and of those that it is to have.
#[test]
fn an_update_after_a_module_is_gone_is_told_of() {
    for (gone, what) in [(0, "of the exec"), (1, "that it is to have")] {
        let rig = Rig::new(&reference(1));
        let driver = &rig.driver;
        // SAFETY: the raw calls of two modules with one kernel, a capture of each, and an exec; live handles and valid places.
        let (updated, patched) = unsafe {
            driver.cuCtxSetCurrent(rig.context.as_raw()).expect("current");
            let captured = [(), ()].map(|()| {
                let (mut module, mut function, mut graph) = (null_mut(), null_mut(), null_mut());
                let text = c".version 8.0 .target sm_70 .address_size 64 .entry demo_fill() {}";
                let none = null_mut();
                driver.cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, none, null_mut()).expect("loaded");
                driver.cuModuleGetFunction(&mut function, module, c"demo_fill".as_ptr()).expect("found");
                let (stream, mode) = (rig.stream.as_raw(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                driver.cuStreamBeginCapture_v2(stream, mode).expect("a capture");
                driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()).expect("a node");
                driver.cuStreamEndCapture(stream, &mut graph).expect("a graph");
                (module, graph)
            });
            let (mut parent, mut child, mut exec) = (null_mut(), null_mut(), null_mut());
            driver.cuGraphCreate(&mut parent, 0).expect("a graph");
            driver.cuGraphAddChildGraphNode(&mut child, parent, null_mut(), 0, captured[0].1).expect("a child");
            driver.cuGraphInstantiateWithParams(&mut exec, parent, &mut std::mem::zeroed()).expect("an exec");
            let patch = || driver.cuGraphExecChildGraphNodeSetParams(exec, child, captured[1].1);
            let update = || driver.cuGraphExecUpdate_v2(exec, parent, &mut std::mem::zeroed());
            patch().and_then(|()| update()).expect("both modules are there");
            driver.cuModuleUnload(captured[gone].0).expect("unloaded");
            (update(), patch())
        };
        // The update is to the first's graph anew.
        assert!(updated.is_err() == (gone == 0) && patched.is_err(), "{updated:?} {patched:?}");
        let told = diagnostics(&rig);
        assert!(
            told.iter().all(|text| text.contains("was updated after")) && told.iter().any(|text| text.contains(what)),
            "{told:?}"
        );
    }
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
