//! What the bench `forward` prints.

use super::support::demo::DecoderSizes;
use breakable_cuda_graph::BreakKind;

/// How an arm runs the layers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Eager,
    /// A capture with breaks of this kind.
    Capture(BreakKind),
    /// The same. Its batch is at another place on every other run, and has another number of sequences, so that each launch of its breaks differs.
    Changed(BreakKind),
    /// The driver calls of the arm before, on its execs.
    Bare,
}

/// The arms in their order.
pub const ARMS: [(&str, Way); 6] = [
    ("eager", Way::Eager),
    ("live", Way::Capture(BreakKind::Live)),
    ("patched", Way::Capture(BreakKind::Patched)),
    ("changed", Way::Changed(BreakKind::Patched)),
    ("frozen", Way::Capture(BreakKind::Inline)),
    ("bare", Way::Bare),
];
const FROZEN: usize = 4;

/// Microseconds of each arm, block by block.
#[derive(Default)]
pub struct Measured {
    pub blocks: usize,
    pub latency: [Vec<f64>; ARMS.len()],
    pub host: [Vec<f64>; ARMS.len()],
    pub back_to_back: [Vec<f64>; ARMS.len()],
}

pub struct Report<'a> {
    pub json: bool,
    pub driver: String,
    pub products: &'a str,
}

impl Report<'_> {
    pub fn begin(&self, size: &str, sizes: DecoderSizes) {
        if self.json {
            return;
        }
        let DecoderSizes { layers, width, shards, .. } = sizes;
        println!("\n{size}: {layers} layers, {width} wide, one of {shards} shards");
        println!(
            "{:>6} {:<9} {:>11} {:>20} {:>9} {:>18} {:>13} {:>20} {:>12} {:>13} {:>6}",
            "rows",
            "arm",
            "latency µs",
            "quartiles",
            "host µs",
            "quartiles",
            "back to back",
            "quartiles",
            "over frozen",
            "back to back",
            "equal"
        );
    }

    pub fn rows(&self, size: &str, sizes: DecoderSizes, rows: u32, measured: Option<&Measured>) {
        for (arm, (name, _)) in ARMS.iter().enumerate() {
            let Some(measured) = measured else {
                if self.json {
                    println!("{}", serde_json::Value::Object(self.row(size, sizes, rows, name)));
                } else {
                    println!("{rows:>6} {name:<9} not measured; equal: true");
                }
                continue;
            };
            let [low, latency, high] = quartiles(&measured.latency[arm]);
            let [host_low, host, host_high] = quartiles(&measured.host[arm]);
            let [least, back_to_back, most] = quartiles(&measured.back_to_back[arm]);
            let over = |times: &[Vec<f64>; ARMS.len()]| {
                let ratios: Vec<f64> =
                    times[arm].iter().zip(&times[FROZEN]).map(|(arm, frozen)| arm / frozen).collect();
                quartiles(&ratios)[1]
            };
            let (over_latency, over_back_to_back) = (over(&measured.latency), over(&measured.back_to_back));
            if self.json {
                let mut row = self.row(size, sizes, rows, name);
                let values = serde_json::json!({
                    "blocks": measured.blocks, "latency_us_median": latency, "latency_us_quartiles": [low, high],
                    "host_us_median": host, "host_us_quartiles": [host_low, host_high], "back_to_back_us": back_to_back,
                    "back_to_back_us_quartiles": [least, most],
                    "over_frozen_latency": over_latency, "over_frozen_back_to_back": over_back_to_back,
                });
                row.extend(values.as_object().cloned().unwrap_or_default());
                println!("{}", serde_json::Value::Object(row));
            } else {
                let [spread, host_spread, last] = [(low, high), (host_low, host_high), (least, most)]
                    .map(|(low, high)| format!("{low:.1} to {high:.1}"));
                println!(
                    "{rows:>6} {name:<9} {latency:>11.1} {spread:>20} {host:>9.1} {host_spread:>18} {back_to_back:>13.1} {last:>20} {over_latency:>12.4} {over_back_to_back:>13.4} {:>6}",
                    "true"
                );
            }
        }
    }

    /// What each row of JSON has. It is only printed where the arms are equal.
    fn row(&self, size: &str, sizes: DecoderSizes, rows: u32, arm: &str) -> serde_json::Map<String, serde_json::Value> {
        let row = serde_json::json!({
            "bench": "forward", "size": size, "layers": sizes.layers, "rows": rows, "arm": arm, "driver": self.driver,
            "products": self.products, "equal": true,
        });
        row.as_object().cloned().unwrap_or_default()
    }
}

/// Lower quartile, median and upper quartile.
fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
