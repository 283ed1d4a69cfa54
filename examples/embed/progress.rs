//! Progress bars on standard error, where that is a terminal.

use breakable_cuda_graph::prefill::CaptureProgress;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// One bar for captures, one for sentences.
pub struct Bars {
    captures: ProgressBar,
    sentences: ProgressBar,
}

impl Bars {
    pub fn new(sentences: u64) -> Bars {
        let all = MultiProgress::new();
        let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let captures = all.add(ProgressBar::new(0));
        captures.set_style(style("captures  {wide_bar} {pos}/{len} {msg}"));
        let bar = all.add(ProgressBar::new(sentences));
        bar.set_style(style("sentences {wide_bar} {pos}/{len} {per_sec} {eta}"));
        Bars { captures, sentences: bar }
    }

    /// A bucket was captured. The first rank's are shown: the others do the same.
    pub fn captured(&self, rank: usize, progress: &CaptureProgress) {
        if rank > 0 {
            return;
        }
        let CaptureProgress { bucket, bytes, took, .. } = progress;
        self.captures.set_length(progress.of as u64);
        self.captures.set_position(progress.done as u64);
        self.captures.set_message(format!("bucket {bucket}: {} KiB, {:.3} s", bytes >> 10, took.as_secs_f64()));
    }

    /// Sentences were embedded.
    pub fn embedded(&self, sentences: usize) {
        self.sentences.inc(sentences as u64);
    }

    pub fn finish(&self) {
        self.captures.finish_and_clear();
        self.sentences.finish_and_clear();
    }
}
