//! The program of the benches `replay` and `capture`: segments of small kernels with breaks of a few kernels between them.

/// How large it is.
#[derive(clap::Args)]
pub struct Shape {
    /// Segments.
    #[arg(long, default_value_t = 33)]
    pub segments: usize,
    /// Kernels of a segment.
    #[arg(long, default_value_t = 8)]
    pub kernels: usize,
    /// Kernels of a break.
    #[arg(long, default_value_t = 2)]
    pub break_kernels: usize,
    /// Elements of every tensor: with the default, kernels of well under a microsecond.
    #[arg(long, default_value_t = 1024)]
    pub elements: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { segments, kernels, break_kernels, .. } = self;
        write!(
            f,
            "{segments} segments of {kernels} kernels, {} breaks of {break_kernels} kernels",
            segments.saturating_sub(1)
        )
    }
}
