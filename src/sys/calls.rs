//! The one list of driver calls: exported name, signature, the CUDA version that introduced that ABI, and whether the crate can do without it.
//!
//! The version is the one `cuGetProcAddress_v2` is asked for, together with the name less its `_vN` suffix. `needed` calls must be there for
//! a driver to load: those that the crate makes (the floor is CUDA 12.0, so nothing newer can be needed). An `optional` one that is missing is an
//! [`Unsupported`](super::CallError::Unsupported) error when it is used: those that the crate has another way for, or leaves to its users and tests.

/// Hands the list to the macro `$then`.
macro_rules! for_each_call {
    ($then:ident) => {
        $then! {
            // Driver and devices.
            needed 2000 cuInit(flags: c_uint);
            needed 2020 cuDriverGetVersion(version: *mut c_int);
            needed 6000 cuGetErrorString(code: CUresult, text: *mut *const c_char);
            needed 2000 cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
            needed 2000 cuDeviceGetCount(count: *mut c_int);
            needed 2000 cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
            needed 2000 cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
            needed 3020 cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
            needed 11040 cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
            needed 4000 cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
            optional 11020 cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
            needed 7000 cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            needed 11000 cuDevicePrimaryCtxRelease_v2(device: CUdevice);

            // Contexts.
            needed 4000 cuCtxGetCurrent(context: *mut CUcontext);
            needed 4000 cuCtxSetCurrent(context: CUcontext);
            needed 2000 cuCtxGetDevice(device: *mut CUdevice);
            needed 12000 cuCtxGetId(context: CUcontext, id: *mut c_ulonglong);
            needed 2000 cuCtxSynchronize();
            optional 5050 cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);

            // Streams and capture.
            optional 2000 cuStreamCreate(stream: *mut CUstream, flags: c_uint);
            needed 5050 cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
            needed 4000 cuStreamDestroy_v2(stream: CUstream);
            needed 2000 cuStreamQuery(stream: CUstream);
            needed 2000 cuStreamSynchronize(stream: CUstream);
            needed 3020 cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
            needed 5050 cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
            needed 5050 cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
            needed 9020 cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
            needed 12000 cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
            needed 10010 cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
            needed 10000 cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
            needed 10000 cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
            optional 11030 cuStreamGetCaptureInfo_v2(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
            needed 10010 cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
            optional 10000 cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);

            // Events.
            needed 2000 cuEventCreate(event: *mut CUevent, flags: c_uint);
            needed 4000 cuEventDestroy_v2(event: CUevent);
            needed 2000 cuEventRecord(event: CUevent, stream: CUstream);
            optional 11010 cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
            needed 2000 cuEventQuery(event: CUevent);
            needed 2000 cuEventSynchronize(event: CUevent);
            needed 2000 cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

            // Memory.
            needed 3020 cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            needed 3020 cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
            needed 3020 cuMemFree_v2(address: CUdeviceptr);
            needed 2020 cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
            needed 2000 cuMemFreeHost(address: *mut c_void);
            needed 4000 cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
            optional 3020 cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
            optional 3020 cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
            needed 3020 cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
            needed 3020 cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
            needed 3020 cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
            needed 3020 cuMemsetD8Async(address: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
            optional 3020 cuMemsetD32Async(address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);

            // Stream-ordered memory pools.
            needed 11020 cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
            needed 11020 cuMemPoolDestroy(pool: CUmemoryPool);
            needed 11020 cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            needed 11020 cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            needed 11020 cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
            needed 11020 cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
            needed 11020 cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);

            // Memory at reserved addresses.
            needed 10020 cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
            needed 10020 cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong);
            needed 10020 cuMemAddressFree(address: CUdeviceptr, bytes: usize);
            needed 10020 cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
            needed 10020 cuMemRelease(handle: CUmemGenericAllocationHandle);
            needed 10020 cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
            needed 10020 cuMemUnmap(address: CUdeviceptr, bytes: usize);
            needed 10020 cuMemSetAccess(address: CUdeviceptr, bytes: usize, list: *const CUmemAccessDesc, count: usize);

            // Modules and kernels.
            needed 2010 cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void);
            needed 2000 cuModuleUnload(module: CUmodule);
            needed 2000 cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
            optional 12040 cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule);
            optional 12040 cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, module: CUmodule);
            optional 2020 cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
            optional 9000 cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
            optional 12030 cuFuncGetName(name: *mut *const c_char, function: CUfunction);
            optional 12040 cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
            optional 12040 cuFuncLoad(function: CUfunction);
            needed 4000 cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
            optional 11060 cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);

            // Graphs.
            needed 10000 cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
            needed 10000 cuGraphDestroy(graph: CUgraph);
            needed 10000 cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
            optional 10000 cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize);
            optional 10000 cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize);
            needed 10000 cuGraphDestroyNode(node: CUgraphNode);
            needed 10000 cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
            needed 12000 cuGraphAddKernelNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS);
            needed 10000 cuGraphAddChildGraphNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, child: CUgraph);
            needed 10000 cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
            optional 12000 cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
            optional 11000 cuGraphKernelNodeGetAttribute(node: CUgraphNode, attribute: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue);
            needed 11000 cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue);
            needed 10000 cuGraphMemsetNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS);
            needed 12000 cuGraphInstantiateWithParams(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
            needed 10000 cuGraphExecDestroy(exec: CUgraphExec);
            needed 11010 cuGraphUpload(exec: CUgraphExec, stream: CUstream);
            needed 10000 cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
            needed 12000 cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo);
            needed 12000 cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
            needed 11010 cuGraphExecChildGraphNodeSetParams(exec: CUgraphExec, node: CUgraphNode, child: CUgraph);
            optional 11060 cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: c_uint);
            optional 11060 cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: *mut c_uint);
            optional 11030 cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
        }
    };
}
pub(crate) use for_each_call;
