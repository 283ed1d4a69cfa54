//! Inline breaks: what they enqueue goes into the open segment.

use super::recorder::Recorder;
use crate::capture::breaks::options::BreakOptions;
use crate::capture::breaks::outputs::{Outputs, gather_all, visit_in_order};
use crate::capture::breaks::view::Break;
use crate::capture::forward::frame::{self, Frame};
use crate::error::{Misuse, Result};
use crate::tensor::Tensor;
use crate::tensor::padding::land;

impl Recorder<'_> {
    /// Runs an inline break, as part of the segment; breaks of its own run straight through.
    pub(super) fn run_inline<O, F>(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        into: Option<&Tensor>,
        operation: &mut F,
    ) -> Result<O>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O>,
    {
        let frame = frame::enter(Frame { recorder: None, ..self.frame() });
        let handoffs = into.map_or(&[][..], std::slice::from_ref);
        let this = Break::new(&options.name, &self.stream, inputs, handoffs, self.valid_rows);
        let ran = operation(&this).and_then(|outputs| {
            let Some(into) = into else { return Ok(outputs) };
            let count = visit_in_order(outputs, &mut |index, result| match index {
                0 => land(&self.stream, &result, into, None),
                _ => Err(Misuse::OutputCount { expected: 1, got: index + 1 }.into()),
            })?;
            if count == 0 {
                return Err(Misuse::OutputCount { expected: 1, got: 0 }.into());
            }
            gather_all(vec![into.clone()])
        });
        drop(frame);
        self.lost_unless_ran(&options.name, ran)
    }
}
