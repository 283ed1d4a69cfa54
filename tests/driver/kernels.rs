//! Kernels of one's own: what is wrong with one is said when it is asked for or launched, and the rest of its module is not touched.

use crate::support::{self, Rig, demo};
use breakable_cuda_graph::driver::{Kernel, LaunchConfig, Module};
use breakable_cuda_graph::tensor::Arg;
use breakable_cuda_graph::{BreakOptions, BreakableCapture, Error, Misuse, Result, Tensor};
use core::ffi::c_void;

/// `demo_scale(const float *x, float *y, float factor, u64 count)`.
fn scale(rig: &Rig) -> Kernel {
    Module::load_ptx(&rig.context, demo::DEMO).and_then(|module| module.kernel("demo_scale")).expect("the kernel")
}

const CONFIG: LaunchConfig = LaunchConfig::new([1, 1, 1], [32, 1, 1]);

/// Each list of arguments that is not that of the parameters, and the error.
fn refused(tensor: &Tensor, launch: impl Fn(&[Arg<'_>]) -> Result<()>) {
    let (x, y, four) = (Arg::from(tensor), Arg::from(tensor), Arg::U64(4));
    let error = |arguments: &[Arg<'_>]| launch(arguments).expect_err("it is refused");
    for (arguments, number) in [(&[x, y, Arg::F32(2.0)][..], 3), (&[], 0), (&[x, y, Arg::F32(2.0), four, four], 5)] {
        let error = error(arguments);
        let Error::Misuse(Misuse::ArgumentCount { kernel, expected: 4, given }) = &error else { panic!("{error:?}") };
        assert_eq!((kernel.as_str(), *given, error.code()), ("demo_scale", number, 533));
    }
    let sizes = [
        (&[x, y, Arg::F64(2.0), four][..], (2, 4, 8)),
        (&[x, y, Arg::F32(2.0), Arg::U32(4)], (3, 8, 4)),
        (&[Arg::Bytes(&[0; 16]), y, Arg::F32(2.0), four], (0, 8, 16)),
    ];
    for (arguments, expected) in sizes {
        let error = error(arguments);
        let text = error.to_string();
        let Error::Misuse(Misuse::ArgumentSize { kernel, position, expected: size, given }) = &error else {
            panic!("{error:?}")
        };
        assert_eq!((kernel.as_str(), (*position, *size, *given), error.code()), ("demo_scale", expected, 534));
        assert!(text.contains("demo_scale") && text.contains(&format!("argument {position}")), "{text}");
    }
}

/// The driver would read past the list, or past a value that is too short.
#[test]
fn arguments_that_are_not_the_parameters_are_refused() {
    let rig = Rig::new(&support::driver());
    let (kernel, x) = (scale(&rig), rig.ones(&[4]));
    assert_eq!(kernel.parameters().expect("12.4 or later").len(), 4);
    // SAFETY: it is refused before it reaches the driver.
    refused(&x, |arguments| unsafe { kernel.launch(&rig.stream, CONFIG, arguments) });
    let mut value = 1_u64;
    let mut pointers = [(&raw mut value).cast::<c_void>(); 3];
    // SAFETY: likewise.
    let error = unsafe { kernel.launch_raw(&rig.stream, CONFIG, &mut pointers) }.expect_err("one is missing");
    assert!(matches!(error, Error::Misuse(Misuse::ArgumentCount { expected: 4, given: 3, .. })), "{error:?}");
}

#[test]
fn they_are_refused_in_a_segment_and_in_a_patched_body_too() {
    let rig = Rig::new(&support::driver());
    let kernel = scale(&rig);
    let x = rig.ones(&[4]);
    let (rig, kernel, x) = (&rig, &kernel, &x);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |scope| {
        // SAFETY: it is refused before it reaches the driver.
        refused(x, |arguments| unsafe { kernel.launch(&scope.stream()?, CONFIG, arguments) });
        let h = rig.ops.scale(x, 2.0)?;
        let h = scope.break_point(BreakOptions::new("patched").patched(), [&h], move |b| {
            // SAFETY: likewise.
            refused(x, |arguments| unsafe { kernel.launch(b.stream(), CONFIG, arguments) });
            rig.ops.scale(b.input(0)?, 3.0)
        })?;
        rig.ops.relu(&h)
    });
    let out = out.expect("nothing of it reached the driver");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_eq!(rig.read(&out), [6.0; 4]);
}

#[cfg(not(feature = "driver-tests"))]
mod without_a_host_function {
    use super::*;
    use breakable_cuda_graph::driver::{Device, Stream};
    use breakable_cuda_graph::reference::Options;
    use breakable_cuda_graph::sys::{Call, CallError};
    use breakable_cuda_graph::{Driver, eager};

    unsafe extern "C" fn nothing(_: *const LaunchConfig, _: *const *mut c_void) {}

    const TWO: &core::ffi::CStr =
        c".version 8.0\n.target sm_70\n.visible .entry mine(.param .u64 a) { ret; }\n.entry other() { ret; }";

    /// The module loads, and so do the kernels that have one.
    #[test]
    fn a_kernel_without_a_host_function_is_refused_by_name_and_its_module_loads() {
        let driver = Driver::reference_with(Options::default().kernel("mine", nothing)).expect("a driver");
        let context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        let module = Module::load_ptx(&context, TWO).expect("the module loads");
        let mine = module.kernel("mine").expect("it has one");
        // SAFETY: the function does nothing.
        unsafe { mine.launch(&stream, CONFIG, &[Arg::U64(0)]) }.expect("a launch");
        stream.synchronize().expect("it ran");
        assert!(driver.ref_driver().expect("the reference driver").diagnostics().is_empty());

        let error = module.kernel("other").expect_err("it has none");
        assert!(matches!(&error, Error::Misuse(Misuse::NoHostKernel { kernel }) if kernel == "other"), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("`other`") && text.contains("Options::kernel(\"other\", ..)"), "{text}");
        assert_eq!(error.code(), 532);
        let diagnostics = driver.ref_driver().expect("the reference driver").diagnostics();
        assert_eq!(diagnostics.len(), 1);
        assert!(diagnostics[0].contains("`other`") && diagnostics[0].contains("Options::kernel"), "{diagnostics:?}");
        // A name that the module lacks is another error.
        assert!(matches!(module.kernel("neither"), Err(Error::Call(_))));
        module.kernel("mine").expect("nothing happened to it");
    }

    /// A driver from before CUDA 11.8 has no such call; one that lacks it for another reason is told from it as little.
    #[test]
    fn attributes_are_refused_where_the_driver_lacks_the_call() {
        let call = Call::cuLaunchKernelEx;
        let driver =
            Driver::reference_with(Options::default().kernel("mine", nothing).missing(call)).expect("a driver");
        let context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        let mine = Module::load_ptx(&context, TWO).and_then(|module| module.kernel("mine")).expect("it has one");
        // SAFETY: the function does nothing.
        let launch = |config| unsafe { mine.launch(&stream, config, &[Arg::U64(0)]) };
        launch(CONFIG).expect("a launch");
        for config in [CONFIG.cluster([1, 1, 1]), CONFIG.cooperative(), CONFIG.programmatic()] {
            let error = launch(config).expect_err("it is lacking");
            let Error::Call(CallError::Unsupported { call: lacking, .. }) = error else { panic!("{error:?}") };
            assert_eq!(lacking, call);
        }
    }

    /// In a forward the recording fails with it, and says so.
    #[test]
    fn a_recording_that_asks_for_one_fails_with_its_name() {
        let rig = Rig::new(&support::driver());
        let module = Module::load_ptx(&rig.context, TWO).expect("the module loads");
        let ask = || -> Result<Tensor> { module.kernel("other").map(|_| rig.ones(&[1])) };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let text = capture.record(&rig.stream, |_| ask()).expect_err("it fails").to_string();
        assert!(text.contains("`other`") && text.contains("host function"), "{text}");
        assert!(eager(&rig.pool, &rig.stream, |_| ask()).is_err());
    }
}
