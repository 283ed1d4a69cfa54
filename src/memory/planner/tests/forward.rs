//! A whole forward: what the planner is for.

use super::{BufferSpec, SearchBudget, planned};
use crate::memory::Trace;
use crate::memory::planner::PlanOptions;

/// An encoder of 32 layers, 4096 wide, with 13 buffers a layer, each given up after its last use.
fn encoder(rows: usize) -> Trace {
    let mut trace = Trace::new();
    let mut residual = trace.allocate(rows * 4096 * 2);
    for _ in 0..32 {
        for (width, hidden) in [(6144, 4096), (28672, 14336)] {
            let statistics = trace.allocate(rows * 4);
            let normed = trace.allocate(rows * 4096 * 2);
            release(&mut trace, &[statistics]);
            let wide = trace.allocate(rows * width * 2);
            release(&mut trace, &[normed]);
            let inner = trace.allocate(rows * hidden * 2);
            release(&mut trace, &[wide]);
            let projected = trace.allocate(rows * 4096 * 2);
            release(&mut trace, &[inner]);
            let sum = trace.allocate(rows * 4096 * 2);
            release(&mut trace, &[residual, projected]);
            residual = sum;
        }
        let kept = trace.allocate(rows * 2);
        release(&mut trace, &[kept]);
    }
    release(&mut trace, &[residual]);
    trace
}

fn release(trace: &mut Trace, requests: &[usize]) {
    requests.iter().for_each(|&request| trace.release(request).expect("it is live"));
}

fn specs(trace: &Trace) -> Vec<BufferSpec> {
    let steps = trace.steps().len();
    let requests = trace.requests().iter();
    let spec = requests.map(|request| {
        let released = request.released.unwrap_or(steps);
        BufferSpec::new(request.bytes, request.allocated as u64, released as u64)
    });
    spec.collect()
}

#[test]
fn a_forward_takes_no_more_than_its_peak() {
    for rows in [1, 77, 512] {
        let trace = encoder(rows);
        assert_eq!(trace.requests().len(), 417);
        let placement = planned(&specs(&trace), &PlanOptions::new().budget(SearchBudget::Steps(0)));
        assert_eq!(placement.bytes(), trace.peak(512));
    }
}
