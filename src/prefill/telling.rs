//! Telling a caller what was captured, whatever it does then.
#![deny(unsafe_code)]

use super::options::CaptureProgress;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Tells a caller of captures. Its panic goes on at once, or, where other ranks would wait for this one, when all is captured.
pub(super) struct Telling<'p> {
    progress: &'p mut dyn FnMut(&CaptureProgress),
    has_others: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl<'p> Telling<'p> {
    pub(super) fn new(progress: &'p mut dyn FnMut(&CaptureProgress), has_others: bool) -> Telling<'p> {
        Telling { progress, has_others, panic: None }
    }

    /// Tells of one, unless the caller has panicked before.
    pub(super) fn tell(&mut self, one: &CaptureProgress) {
        if self.panic.is_some() {
            return;
        }
        if !self.has_others {
            return (self.progress)(one);
        }
        let progress = &mut *self.progress;
        self.panic = catch_unwind(AssertUnwindSafe(|| progress(one))).err();
    }

    /// All is captured.
    pub(super) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}
