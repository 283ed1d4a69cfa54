//! The arguments that all benches on a driver take.

use crate::support::Choice;

#[derive(Clone, Copy, clap::Args)]
pub struct Common {
    /// Print one JSON object a row instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    pub driver: Choice,
    /// What `cargo bench` passes on.
    #[arg(long, hide = true)]
    bench: bool,
}
