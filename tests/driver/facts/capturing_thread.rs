//! Calls by the capturing thread while its capture is open.

use super::bench::Answer::{self, Invalidates, Survives, Unasked};
use super::bench::{Bench, INVALID_VALUE, INVALIDATED, OK, SPARE_PTX, UNSUPPORTED, ask, code};
use breakable_cuda_graph::sys::{
    CUfunction_attribute, CUmemAllocationProp, CUmemAllocationType, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUpointer_attribute, CUresult, CUstream, CUstream_flags_enum, CUstreamCaptureMode, CallError,
    Driver,
};
use std::ptr::null_mut;

const EVERY: Answer = Survives(OK);
const FORBIDDEN: Answer = Invalidates(UNSUPPORTED);

/// One test a row: name, answer under Global and ThreadLocal, answer under Relaxed, the call.
macro_rules! rows {
    ($($name:ident: $strict:expr, $relaxed:expr, $call:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let call: fn(&Bench, CUstream) -> Result<(), CallError> = $call;
                ask(stringify!($name), $strict, $relaxed, call);
            }
        )*
    };
}

rows! {
    stream_create: EVERY, EVERY, |b, _| {
        let mut made = null_mut();
        // SAFETY (this and all calls of this file): live handles of the bench and valid places, with the context current.
        unsafe { b.driver().cuStreamCreate(&mut made, 1)? };
        b.later(move |driver| unsafe { driver.cuStreamDestroy_v2(made).expect("destroyed") });
        Ok(())
    };
    stream_destroy_another: EVERY, EVERY, |b, _| unsafe {
        let mut made = null_mut();
        b.driver().cuStreamCreate(&mut made, 1)?;
        b.driver().cuStreamDestroy_v2(made)
    };
    event_create_and_destroy: EVERY, EVERY, |b, _| unsafe {
        let mut made = null_mut();
        b.driver().cuEventCreate(&mut made, 0)?;
        b.driver().cuEventDestroy_v2(made)
    };
    module_load: EVERY, EVERY, |b, _| {
        let module = load(b.driver())?;
        b.later(move |driver| unsafe { driver.cuModuleUnload(module).expect("unloaded") });
        Ok(())
    };
    module_get_function_and_set_attribute: EVERY, EVERY, |b, _| unsafe {
        let module = load(b.driver())?;
        b.later(move |driver| driver.cuModuleUnload(module).expect("unloaded"));
        let mut function = null_mut();
        b.driver().cuModuleGetFunction(&mut function, module, c"demo_fill".as_ptr())?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        b.driver().cuFuncSetAttribute(function, attribute, 1024)
    };
    pointer_get_attribute: EVERY, EVERY, |b, _| unsafe {
        let mut ordinal = -1;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        b.driver().cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, b.spare.address())
    };
    module_unload: FORBIDDEN, EVERY, |b, _| unsafe {
        let module = load(b.driver())?;
        let unloaded = b.driver().cuModuleUnload(module);
        if unloaded.is_err() {
            b.later(move |driver| driver.cuModuleUnload(module).expect("unloaded"));
        }
        unloaded
    };
    stream_get_ctx_and_priority_of_the_capturing: EVERY, EVERY, |b, stream| unsafe {
        let (mut context, mut priority) = (null_mut(), 0);
        b.driver().cuStreamGetCtx(stream, &mut context)?;
        b.driver().cuStreamGetPriority(stream, &mut priority)
    };
    stream_get_flags_of_the_capturing: FORBIDDEN, FORBIDDEN, |b, stream| unsafe {
        let mut flags = 0;
        b.driver().cuStreamGetFlags(stream, &mut flags)
    };
    stream_get_id_of_the_capturing: FORBIDDEN, FORBIDDEN, |b, stream| unsafe {
        let mut id = 0;
        b.driver().cuStreamGetId(stream, &mut id)
    };
    mem_get_info: EVERY, EVERY, |b, _| unsafe {
        let (mut free, mut total) = (0, 0);
        b.driver().cuMemGetInfo_v2(&mut free, &mut total)
    };
    device_get_default_mem_pool: EVERY, EVERY, |b, _| unsafe {
        let mut pool = null_mut();
        b.driver().cuDeviceGetDefaultMemPool(&mut pool, b.rig.context.device().as_raw())
    };
    mem_pool_create: FORBIDDEN, EVERY, |b, _| unsafe {
        let mut props: CUmemPoolProps = std::mem::zeroed();
        props.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // `maxSize`, by its offset: headers before CUDA 12.2 have reserved bytes there.
        (&raw mut props).byte_add(24).cast::<usize>().write(1 << 21);
        let mut pool = null_mut();
        b.driver().cuMemPoolCreate(&mut pool, &props)?;
        b.later(move |driver| driver.cuMemPoolDestroy(pool).expect("destroyed"));
        Ok(())
    };
    mem_pool_get_attribute: FORBIDDEN, EVERY, |b, _| unsafe {
        let mut value = 0_u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        b.driver().cuMemPoolGetAttribute(b.pool.as_raw(), attribute, (&raw mut value).cast())
    };
    mem_pool_set_attribute: FORBIDDEN, EVERY, |b, _| unsafe {
        let mut value = 0_u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        b.driver().cuMemPoolSetAttribute(b.pool.as_raw(), attribute, (&raw mut value).cast())
    };
    mem_pool_trim_to: FORBIDDEN, EVERY, |b, _| unsafe { b.driver().cuMemPoolTrimTo(b.pool.as_raw(), 0) };
    mem_alloc: FORBIDDEN, EVERY, |b, _| {
        let address = alloc(b.driver())?;
        b.later(move |driver| unsafe { driver.cuMemFree_v2(address).expect("freed") });
        Ok(())
    };
    mem_free: FORBIDDEN, EVERY, |b, _| unsafe {
        let address = b.spare_alloc();
        let freed = b.driver().cuMemFree_v2(address);
        if freed.is_err() {
            b.later(move |driver| driver.cuMemFree_v2(address).expect("freed"));
        }
        freed
    };
    mem_host_alloc: FORBIDDEN, EVERY, |b, _| unsafe {
        let mut address = null_mut();
        b.driver().cuMemHostAlloc(&mut address, 4096, 0)?;
        b.later(move |driver| driver.cuMemFreeHost(address).expect("freed"));
        Ok(())
    };
    mem_create: EVERY, EVERY, |b, _| unsafe {
        let mut prop: CUmemAllocationProp = std::mem::zeroed();
        prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let mut handle = 0;
        b.driver().cuMemCreate(&mut handle, 2 << 20, &prop, 0)?;
        b.later(move |driver| driver.cuMemRelease(handle).expect("released"));
        Ok(())
    };
    mem_address_reserve: EVERY, EVERY, |b, _| unsafe {
        let mut address = 0;
        b.driver().cuMemAddressReserve(&mut address, 2 << 20, 0, 0, 0)?;
        b.later(move |driver| driver.cuMemAddressFree(address, 2 << 20).expect("freed"));
        Ok(())
    };
    mem_alloc_from_pool_async_on_another_stream: FORBIDDEN, EVERY, |b, _| pool_alloc(b);
    mem_alloc_from_pool_async_on_another_stream_relaxed_by_exchange: EVERY, EVERY, |b, _| exchanged(b, pool_alloc);
    mem_alloc_relaxed_by_exchange: EVERY, EVERY, |b, _| exchanged(b, |b| {
        let address = alloc(b.driver())?;
        b.later(move |driver| unsafe { driver.cuMemFree_v2(address).expect("freed") });
        Ok(())
    });
    mem_free_relaxed_by_exchange: EVERY, EVERY, |b, _| exchanged(b, |b| unsafe {
        let address = alloc(b.driver())?;
        b.driver().cuMemFree_v2(address)
    });
    stream_synchronize_another_relaxed_by_exchange: EVERY, EVERY, |b, _| {
        exchanged(b, |b| unsafe { b.driver().cuStreamSynchronize(b.other.as_raw()) })
    };
    mem_free_async_of_foreign_memory_on_the_capturing_stream: Survives(INVALID_VALUE), Survives(INVALID_VALUE), |b, stream| {
        unsafe { b.driver().cuMemFreeAsync(b.pool_block(), stream) }
    };
    memcpy_htod_on_the_legacy_stream: EVERY, EVERY, |b, _| unsafe {
        b.driver().cuMemcpyHtoD_v2(b.spare.address(), [0_u8; 64].as_ptr().cast(), 64)
    };
    memcpy_htod_async_on_the_capturing_stream: EVERY, EVERY, |b, stream| unsafe {
        static SOURCE: [u8; 64] = [0; 64];
        b.driver().cuMemcpyHtoDAsync_v2(b.spare.address(), SOURCE.as_ptr().cast(), 64, stream)
    };
    memcpy_htod_async_on_another_stream: EVERY, EVERY, |b, _| unsafe {
        static SOURCE: [u8; 64] = [0; 64];
        b.driver().cuMemcpyHtoDAsync_v2(b.spare.address(), SOURCE.as_ptr().cast(), 64, b.other.as_raw())
    };
    launch_on_another_stream: EVERY, EVERY, |b, _| b.launch(b.other.as_raw());
    event_query_of_one_recorded_before: FORBIDDEN, EVERY, |b, _| unsafe { b.driver().cuEventQuery(b.before.as_raw()) };
    event_synchronize_of_one_recorded_before: FORBIDDEN, EVERY, |b, _| unsafe {
        b.driver().cuEventSynchronize(b.before.as_raw())
    };
    stream_query_another: FORBIDDEN, EVERY, |b, _| unsafe { b.driver().cuStreamQuery(b.other.as_raw()) };
    stream_synchronize_another: FORBIDDEN, EVERY, |b, _| unsafe { b.driver().cuStreamSynchronize(b.other.as_raw()) };
    stream_query_the_capturing: FORBIDDEN, FORBIDDEN, |b, stream| unsafe { b.driver().cuStreamQuery(stream) };
    stream_synchronize_the_capturing: FORBIDDEN, FORBIDDEN, |b, stream| unsafe { b.driver().cuStreamSynchronize(stream) };
    ctx_synchronize: Unasked, FORBIDDEN, |b, _| unsafe { b.driver().cuCtxSynchronize() };
    event_query_of_one_recorded_in_the_capture: CAPTURED_EVENT, CAPTURED_EVENT, |b, stream| unsafe {
        let mut event = null_mut();
        b.driver().cuEventCreate(&mut event, 0)?;
        b.later(move |driver| driver.cuEventDestroy_v2(event).expect("destroyed"));
        b.driver().cuEventRecord(event, stream)?;
        b.driver().cuEventQuery(event)
    };
    stream_wait_event_of_one_recorded_before: Invalidates(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION), Unasked, |b, stream| {
        unsafe { b.driver().cuStreamWaitEvent(stream, b.before.as_raw(), 0) }
    };
    begin_capture_again: AGAIN, AGAIN, |b, stream| unsafe {
        b.driver().cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    };
    graph_instantiate: FORBIDDEN, EVERY, |b, _| {
        let graph = empty_graph(b.driver())?;
        b.later(move |driver| unsafe { driver.cuGraphDestroy(graph).expect("destroyed") });
        let exec = b.instantiate(graph)?;
        b.later(move |driver| unsafe { driver.cuGraphExecDestroy(exec).expect("destroyed") });
        Ok(())
    };
    graph_exec_destroy: FORBIDDEN, EVERY, |b, _| unsafe {
        let exec = spare_exec(b);
        let destroyed = b.driver().cuGraphExecDestroy(exec);
        if destroyed.is_err() {
            b.later(move |driver| driver.cuGraphExecDestroy(exec).expect("destroyed"));
        }
        destroyed
    };
    graph_destroy: EVERY, EVERY, |b, _| unsafe { b.driver().cuGraphDestroy(empty_graph(b.driver())?) };
    graph_launch_into_another_stream: EVERY, EVERY, |b, _| unsafe {
        let exec = spare_exec(b);
        b.later(move |driver| driver.cuGraphExecDestroy(exec).expect("destroyed"));
        b.driver().cuGraphLaunch(exec, b.other.as_raw())
    };
    graph_launch_into_the_capturing_stream: FORBIDDEN, FORBIDDEN, |b, stream| unsafe {
        let exec = spare_exec(b);
        b.later(move |driver| driver.cuGraphExecDestroy(exec).expect("destroyed"));
        b.driver().cuGraphLaunch(exec, stream)
    };
}

const CAPTURED_EVENT: Answer = Invalidates(CUresult::CUDA_ERROR_CAPTURED_EVENT);
const AGAIN: Answer = Survives(CUresult::CUDA_ERROR_ILLEGAL_STATE);

fn load(driver: &Driver) -> Result<breakable_cuda_graph::sys::CUmodule, CallError> {
    let mut module = null_mut();
    unsafe { driver.cuModuleLoadDataEx(&mut module, SPARE_PTX.as_ptr().cast(), 0, null_mut(), null_mut())? };
    Ok(module)
}

fn alloc(driver: &Driver) -> Result<u64, CallError> {
    let mut address = 0;
    unsafe { driver.cuMemAlloc_v2(&mut address, 4096)? };
    Ok(address)
}

fn pool_alloc(b: &Bench) -> Result<(), CallError> {
    let (mut address, stream) = (0, b.other.as_raw());
    unsafe { b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, b.pool.as_raw(), stream)? };
    b.later(move |driver| unsafe { driver.cuMemFreeAsync(address, stream).expect("freed") });
    Ok(())
}

fn empty_graph(driver: &Driver) -> Result<breakable_cuda_graph::sys::CUgraph, CallError> {
    let mut graph = null_mut();
    unsafe { driver.cuGraphCreate(&mut graph, 0)? };
    Ok(graph)
}

/// An exec, made past the rule of the capture's mode.
fn spare_exec(b: &Bench) -> breakable_cuda_graph::sys::CUgraphExec {
    let made = std::cell::Cell::new(null_mut());
    exchanged(b, |b| {
        let graph = empty_graph(b.driver())?;
        made.set(b.instantiate(graph)?);
        unsafe { b.driver().cuGraphDestroy(graph) }
    })
    .expect("an exec");
    made.get()
}

/// Makes a call with the thread's mode relaxed.
fn exchanged(b: &Bench, call: impl Fn(&Bench) -> Result<(), CallError>) -> Result<(), CallError> {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    unsafe { b.driver().cuThreadExchangeStreamCaptureMode(&mut mode)? };
    let result = call(b);
    unsafe { b.driver().cuThreadExchangeStreamCaptureMode(&mut mode)? };
    assert_eq!(mode, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    result
}

impl Bench {
    /// Memory taken past the rule of the capture's mode.
    fn spare_alloc(&self) -> u64 {
        let made = std::cell::Cell::new(0);
        exchanged(self, |b| {
            made.set(alloc(b.driver())?);
            Ok(())
        })
        .expect("memory");
        made.get()
    }

    /// A pool's block taken on another stream past the rule of the capture's mode; given back after the row.
    fn pool_block(&self) -> u64 {
        let made = std::cell::Cell::new(0);
        exchanged(self, |b| {
            let mut address = 0;
            unsafe { b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, b.pool.as_raw(), b.other.as_raw())? };
            made.set(address);
            Ok(())
        })
        .expect("memory");
        let (address, stream) = (made.get(), self.other.as_raw());
        // That this succeeds shows that the capture has not freed it.
        self.later(move |driver| unsafe { driver.cuMemFreeAsync(address, stream).expect("freed now") });
        address
    }
}

/// An alloc node: instantiation and the first launch work, the second launch does not.
#[test]
fn mem_alloc_from_pool_async_on_the_capturing_stream() {
    let b = Bench::new();
    let mut address = 0;
    let graph = b.capture(|stream| unsafe {
        b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, b.pool.as_raw(), stream).expect("a node");
    });
    assert_eq!(b.nodes(graph), 1);
    let exec = b.instantiate(graph).expect("instantiated");
    assert_eq!(code(b.run(exec)), OK, "the first launch");
    assert_eq!(code(b.run(exec)), INVALID_VALUE, "the second launch");
    unsafe {
        b.driver().cuMemFreeAsync(address, b.other.as_raw()).expect("freed");
        b.driver().cuStreamSynchronize(b.other.as_raw()).expect("freed");
    }
    b.destroy(&[graph], &[exec]);
}

#[test]
fn launch_on_the_legacy_stream_while_a_blocking_stream_captures() {
    let b = Bench::new();
    for (name, mode) in super::bench::MODES {
        let stream = b.stream(CUstream_flags_enum::CU_STREAM_DEFAULT.0);
        b.begin(stream, mode);
        assert_eq!(code(b.launch(null_mut())), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "{name}");
        assert_eq!(b.end(stream), (INVALIDATED, null_mut()), "{name}");
        b.check_usable(stream, name);
        unsafe { b.driver().cuStreamDestroy_v2(stream).expect("destroyed") };
    }
}

#[test]
fn end_capture_with_a_forked_unjoined_side_stream() {
    let b = Bench::new();
    let (stream, side) = (b.stream(1), b.stream(1));
    let mut fork = null_mut();
    unsafe {
        b.driver().cuEventCreate(&mut fork, 2).expect("an event");
        b.begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        b.launch(stream).expect("a node");
        b.driver().cuEventRecord(fork, stream).expect("recorded");
        b.driver().cuStreamWaitEvent(side, fork, 0).expect("forked");
        b.launch(side).expect("a node on the side");
        assert_eq!(b.end(stream), (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, null_mut()));
        b.check_usable(side, "the side stream");
        b.check_usable(stream, "the stream");
        assert_eq!(code(b.driver().cuEventQuery(fork)), INVALID_VALUE, "the fork event");
        b.driver().cuEventDestroy_v2(fork).expect("destroyed");
        for stream in [stream, side] {
            b.driver().cuStreamDestroy_v2(stream).expect("destroyed");
        }
    }
}

#[test]
fn stream_destroy_of_a_capturing_stream() {
    let b = Bench::new();
    let stream = b.stream(1);
    b.begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    b.launch(stream).expect("a node");
    assert_eq!(code(unsafe { b.driver().cuStreamDestroy_v2(stream) }), OK);
    b.check_usable(b.other.as_raw(), "another stream");
}
