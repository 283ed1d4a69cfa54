//! Draws what `benches/peers/alternate.py --json` wrote of the bench `replay` and its peer: host time and time back to back of each arm.
//!
//! `cargo bench --bench chart -- ROWS OUT.svg`

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::PathBuf;

/// Draws measured arms.
#[derive(clap::Parser)]
struct Arguments {
    /// One JSON object a row.
    rows: Option<PathBuf>,
    /// Where the picture goes.
    out: Option<PathBuf>,
    /// What `cargo bench` passes on.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Arm {
    name: String,
    host: f64,
    back_to_back: Option<f64>,
}

/// Segments, kernels of each, and kernels of a break.
const PROGRAM: &str = "33x8+2";
const WIDTH: u32 = 1000;
const ROW: u32 = 34;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Arguments = clap::Parser::parse();
    let (Some(rows), Some(out)) = (arguments.rows, arguments.out) else {
        println!("chart: nothing to draw; give a file of rows and one for the picture");
        return Ok(());
    };
    let mut arms = Vec::new();
    for line in std::fs::read_to_string(rows)?.lines() {
        let row: serde_json::Value = serde_json::from_str(line)?;
        let (program, name, host) = (&row["program"], row["arm"].as_str(), row["host_us_median"].as_f64());
        if let (true, Some(name), Some(host)) = (row["bench"] == "replay" && program == PROGRAM, name, host) {
            let name = if row["command"] == 0 { name.to_owned() } else { format!("PyTorch, {name}") };
            arms.push(Arm { name, host, back_to_back: row["back_to_back_us"].as_f64() });
        }
    }
    if arms.is_empty() {
        return Err("no rows of the bench `replay`".into());
    }
    arms.sort_by(|a, b| b.host.total_cmp(&a.host));
    draw(&arms, &out)
}

fn draw(arms: &[Arm], out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let size = (WIDTH, 110 + ROW * arms.len() as u32);
    let root = SVGBackend::new(out, size).into_drawing_area();
    root.fill(&WHITE)?;
    let most = arms.iter().map(|arm| arm.host.max(arm.back_to_back.unwrap_or(0.0))).fold(1.0, f64::max);
    let least = arms.iter().map(|arm| arm.host).fold(f64::MAX, f64::min).min(1.0);
    let mut chart = ChartBuilder::on(&root)
        .caption("One replay of 33 segments of 8 kernels with 32 breaks of 2 kernels", ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(210)
        .build_cartesian_2d((least..most * 2.0).log_scale(), 0.0..arms.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc("microseconds (logarithmic)")
        .x_label_formatter(&|value| format!("{value}"))
        .draw()?;
    let (dark, light) = (RGBColor(40, 90, 160), RGBColor(170, 200, 230));
    let bars = arms.iter().enumerate().flat_map(|(at, arm)| {
        // The first on top.
        let top = (arms.len() - at) as f64;
        let bar = |from: f64, to: f64, value: f64, color: RGBColor| {
            Rectangle::new([(least, top - from), (value, top - to)], color.filled())
        };
        let back_to_back = arm.back_to_back.map(|value| bar(0.55, 0.85, value, light));
        [bar(0.15, 0.55, arm.host, dark)].into_iter().chain(back_to_back)
    });
    chart.draw_series(bars)?;
    let value = ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    chart.draw_series(arms.iter().enumerate().map(|(at, arm)| {
        let middle = (arms.len() - at) as f64 - 0.35;
        Text::new(format!("{:.1}", arm.host), (arm.host * 1.05, middle), value.clone())
    }))?;
    let name = ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
    for (at, arm) in arms.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(least, (arms.len() - at) as f64 - 0.5));
        root.draw(&Text::new(arm.name.clone(), (x - 8, y), name.clone()))?;
    }
    let legend = [("host time of the call, stream idle before", dark), ("one of many back to back, by events", light)];
    for (at, (text, color)) in legend.into_iter().enumerate() {
        let (x, y) = (WIDTH as i32 - 300, size.1 as i32 - 100 + 18 * at as i32);
        root.draw(&Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()))?;
        root.draw(&Text::new(text, (x + 20, y), value.clone()))?;
    }
    root.present()?;
    Ok(())
}
