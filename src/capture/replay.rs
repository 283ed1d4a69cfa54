//! The replay loop: the hot path. It allocates nothing and looks nothing up, and takes no lock but the pool's replay lock, which its caller holds.

use super::program::Step;
use crate::driver::{KeepAlive, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;

/// Runs the steps in order. `replaced`: what patched breaks referred to before.
#[inline]
pub(super) fn run(
    steps: &mut [Step<'_>],
    stream: &Stream,
    valid_rows: Option<usize>,
    pool: &PoolHandle,
    replaced: &mut Vec<KeepAlive>,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Segment { exec, index, .. } => {
                // SAFETY: the program keeps whatever the graph refers to, and its pool; their return waits for what is running.
                if let Err(error) = unsafe { exec.launch(stream) } {
                    return Err(segment_failed(*index, error));
                }
            }
            Step::Break(step) => {
                if let Err(error) = step.run(stream, valid_rows) {
                    return Err(step.failed(error));
                }
            }
            Step::Composite(composite) => {
                let ran = composite.run(stream, valid_rows, pool);
                composite.take_replaced(replaced);
                ran?;
            }
        }
    }
    Ok(())
}

#[cold]
fn segment_failed(index: usize, error: Error) -> Error {
    Error::segment(index, error)
}
