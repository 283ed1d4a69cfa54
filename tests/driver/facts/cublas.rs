//! cuBLAS products as children: one node or two, depending on the number of rows.

use super::bench::{Bench, OK, code};
use breakable_cuda_graph::driver::DeviceBuffer;
use breakable_cuda_graph::sys::{CUgraph, CUresult, CUstream};
use libloading::{Library, Symbol};
use std::ffi::c_void;
use std::ptr::null_mut;

type Handle = *mut c_void;
type Sgemm =
    unsafe extern "C" fn(Handle, i32, i32, i32, i32, i32, *const f32, u64, i32, u64, i32, *const f32, u64, i32) -> i32;

const WIDTH: usize = 512;

fn library() -> Library {
    let names = [
        "libcublas.so.13",
        "libcublas.so.12",
        "/usr/local/cuda/lib64/libcublas.so.13",
        "/usr/local/cuda/lib64/libcublas.so.12",
    ];
    let tried = names.map(|name| unsafe { Library::new(name) });
    let errors: Vec<String> = tried.iter().filter_map(|tried| tried.as_ref().err().map(ToString::to_string)).collect();
    tried.into_iter().find_map(Result::ok).unwrap_or_else(|| panic!("this row needs cuBLAS: {errors:?}"))
}

#[test]
fn a_product_is_one_node_or_two_and_can_not_be_patched_across() {
    let b = Bench::new();
    let library = library();
    let [x, w, y] = [4096 * WIDTH, WIDTH * WIDTH, 4096 * WIDTH]
        .map(|count| DeviceBuffer::new(&b.rig.context, count * 4).expect("memory"));
    let workspace = DeviceBuffer::new(&b.rig.context, 32 << 20).expect("memory");
    let mut handle: Handle = null_mut();
    unsafe {
        let create: Symbol<unsafe extern "C" fn(*mut Handle) -> i32> =
            library.get(b"cublasCreate_v2").expect("a symbol");
        let set_stream: Symbol<unsafe extern "C" fn(Handle, CUstream) -> i32> =
            library.get(b"cublasSetStream_v2").expect("a symbol");
        let set_workspace: Symbol<unsafe extern "C" fn(Handle, u64, usize) -> i32> =
            library.get(b"cublasSetWorkspace_v2").expect("a symbol");
        let sgemm: Symbol<Sgemm> = library.get(b"cublasSgemm_v2").expect("a symbol");
        let destroy: Symbol<unsafe extern "C" fn(Handle) -> i32> = library.get(b"cublasDestroy_v2").expect("a symbol");
        assert_eq!(create(&mut handle), 0);
        let product = |stream: CUstream, rows: usize| {
            assert_eq!(set_stream(handle, stream), 0);
            assert_eq!(set_workspace(handle, workspace.address(), workspace.bytes()), 0);
            let (one, zero, width, rows) = (1.0_f32, 0.0_f32, WIDTH as i32, rows as i32);
            let (x, w, y) = (x.address(), w.address(), y.address());
            assert_eq!(sgemm(handle, 0, 0, width, rows, width, &one, w, width, x, width, &zero, y, width), 0);
        };
        let sizes: Vec<usize> = (0..=12).map(|power| 1 << power).collect();
        for &rows in &sizes {
            product(b.other.as_raw(), rows);
        }
        b.driver().cuStreamSynchronize(b.other.as_raw()).expect("warm");
        let graphs: Vec<(usize, CUgraph)> = sizes
            .iter()
            .map(|&rows| {
                let graph = b.capture(|stream| product(stream, rows));
                (b.nodes(graph), graph)
            })
            .collect();
        let counts: Vec<usize> = graphs.iter().map(|(count, _)| *count).collect();
        assert!(counts.iter().all(|count| [1, 2].contains(count)), "{counts:?}");
        assert!(counts.contains(&1) && counts.contains(&2), "{counts:?}");
        for &(count, child) in &graphs {
            let (mut graph, mut node) = (null_mut(), null_mut());
            b.driver().cuGraphCreate(&mut graph, 0).expect("a graph");
            b.driver().cuGraphAddChildGraphNode(&mut node, graph, std::ptr::null(), 0, child).expect("a child");
            let exec = b.instantiate(graph).expect("instantiated");
            for &(other_count, other) in &graphs {
                let patched = code(b.driver().cuGraphExecChildGraphNodeSetParams(exec, node, other));
                if count == other_count {
                    // Of as many nodes, but these may be of other kinds.
                    assert!([OK, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE].contains(&patched), "{patched:?}");
                } else {
                    assert_eq!(
                        patched,
                        CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                        "{count} to {other_count} nodes"
                    );
                }
            }
            b.destroy(&[graph], &[exec]);
        }
        b.destroy(&graphs.iter().map(|(_, graph)| *graph).collect::<Vec<_>>(), &[]);
        assert_eq!(destroy(handle), 0);
    }
}
