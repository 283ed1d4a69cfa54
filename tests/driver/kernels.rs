//! Kernels of one's own: what is wrong with one is said when it is asked for or launched, and the rest of its module is not touched.

use crate::support::{self, Rig, demo};
use breakable_cuda_graph::driver::{Kernel, LaunchConfig, Module};
use breakable_cuda_graph::sys::CUresult;
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

/// The driver's compiler says where.
#[test]
fn a_module_that_does_not_load_has_the_compilers_text() {
    let rig = Rig::new(&support::driver());
    let text = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry mine(.param .f7 a) { ret; }";
    let error = Module::load_ptx(&rig.context, text).expect_err("no such type");
    let Error::ModuleLoad(load) = &error else { panic!("{error:?}") };
    assert_eq!((load.error.code(), error.code()), (CUresult::CUDA_ERROR_INVALID_PTX, 112));
    assert!(load.log.contains("line 4"), "{}", load.log);
    assert!(error.to_string().contains(&load.log) && error.driver_call() == Some(load.error), "{error}");

    let text = c".version 99.0\n.target sm_70\n.address_size 64";
    let error = Module::load_ptx(&rig.context, text).expect_err("no driver knows it");
    let Error::ModuleLoad(load) = &error else { panic!("{error:?}") };
    assert_eq!(load.error.code(), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert!(error.to_string().contains("update the driver"), "{error}");
}

#[test]
fn a_kernel_that_a_module_lacks_is_named_with_those_that_it_has() {
    let rig = Rig::new(&support::driver());
    let text = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry _Z5scalePff(.param .u64 a, .param .f32 b) { ret; }\n.visible .entry other() { ret; }";
    let module = Module::load_ptx(&rig.context, text).expect("PTX");
    for (name, cure) in [("scale", "ask for `_Z5scalePff`"), ("cale", "`extern \"C\"`"), ("", "`extern \"C\"`")] {
        let error = module.kernel(name).expect_err("it is written otherwise");
        let Error::Kernel(kernel) = &error else { panic!("{error:?}") };
        assert_eq!((kernel.error.code(), error.code()), (CUresult::CUDA_ERROR_NOT_FOUND, 113));
        let names = kernel.available.as_ref().expect("12.4 or later");
        assert_eq!((kernel.kernel.as_str(), &names[..]), (name, &["_Z5scalePff".to_owned(), "other".into()][..]));
        let text = error.to_string();
        assert!(text.contains("`_Z5scalePff`, `other`") && text.contains(cure), "{text}");
    }
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
        assert!(matches!(module.kernel("neither"), Err(Error::Kernel(_))));
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

    /// Before CUDA 12.4 a driver does not tell a module's kernels.
    #[test]
    fn a_name_is_told_alone_where_the_driver_does_not_list_kernels() {
        let driver = Driver::reference_with(Options::default().version(12_000)).expect("12.0 will do");
        let context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
        let error = Module::load_ptx(&context, TWO).and_then(|module| module.kernel("neither")).expect_err("no such");
        let Error::Kernel(kernel) = &error else { panic!("{error:?}") };
        assert!(kernel.available.is_none() && error.to_string().contains("no kernel `neither`"), "{error}");
    }

    /// A block that the kernel says it is not for.
    #[test]
    fn blocks_are_as_the_kernel_declares_them() {
        let text = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry mine(.param .u64 a) .maxntid 64, 1, 1 { ret; }\n\
                     .visible .entry other() .reqntid 8, 4, 1 { ret; }";
        let options = Options::default().kernel("mine", nothing).kernel("other", nothing);
        let driver = Driver::reference_with(options).expect("a driver");
        let context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
        let (stream, module) =
            (Stream::new(&context).expect("a stream"), Module::load_ptx(&context, text).expect("PTX"));
        let launch = |name: &str, block, arguments: &[Arg<'_>]| {
            let kernel = module.kernel(name).expect("it has one");
            // SAFETY: the function does nothing.
            let launched = unsafe { kernel.launch(&stream, LaunchConfig::new([1; 3], block), arguments) };
            launched.err().and_then(|error| error.driver_call()).map(|call| call.code())
        };
        let refused = Some(CUresult::CUDA_ERROR_INVALID_VALUE);
        for (block, expected) in [([64, 1, 1], None), ([8, 8, 1], None), ([65, 1, 1], refused)] {
            assert_eq!(launch("mine", block, &[Arg::U64(0)]), expected, "{block:?}");
        }
        for (block, expected) in [([8, 4, 1], None), ([32, 1, 1], refused), ([8, 4, 2], refused)] {
            assert_eq!(launch("other", block, &[]), expected, "{block:?}");
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
