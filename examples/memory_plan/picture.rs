//! The picture of a plan.

use breakable_cuda_graph::memory::Role;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::{Path, PathBuf};

/// A block to draw.
pub struct Block {
    pub name: String,
    pub role: Role,
    pub begin: u64,
    pub end: u64,
    pub offset: usize,
    pub bytes: usize,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("{file}: the picture could not be drawn: {reason}", file = file.display())]
pub struct PictureError {
    file: PathBuf,
    reason: String,
}

const SIZE: (u32, u32) = (1600, 1000);

/// Draws blocks over time and address, with the live bytes and the lower bound.
pub fn draw(
    file: &Path,
    title: &str,
    blocks: &[Block],
    planned: usize,
    lower_bound: usize,
) -> Result<(), PictureError> {
    picture(file, title, blocks, planned, lower_bound)
        .map_err(|error| PictureError { file: file.into(), reason: error.to_string() })
}

fn picture(
    file: &Path,
    title: &str,
    blocks: &[Block],
    planned: usize,
    lower_bound: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let unit = if planned < 1 << 20 { 1.0 } else { f64::from(1 << 20) };
    let begin = blocks.iter().map(|block| block.begin).min().unwrap_or(0);
    let end = blocks.iter().map(|block| block.end).max().unwrap_or(1);
    let height = planned.max(1) as f64 / unit;
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let overhead = 100.0 * (planned as f64 / lower_bound.max(1) as f64 - 1.0);
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("{title}: {overhead:.2}% above the lower bound"), ("sans-serif", 26))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(begin as f64..end as f64, 0.0..height * 1.04)?;
    let label = if unit == 1.0 { "offset, bytes" } else { "offset, MiB" };
    chart.configure_mesh().disable_mesh().x_desc("step").y_desc(label).draw()?;

    for role in [Role::Intermediate, Role::Handoff, Role::Output] {
        let of_role = blocks.iter().filter(|block| block.role == role);
        let corners = |block: &Block| {
            let top = (block.offset + block.bytes) as f64 / unit;
            [(block.begin as f64, block.offset as f64 / unit), (block.end as f64, top)]
        };
        let color = color(role);
        let filled = of_role.clone().map(|block| Rectangle::new(corners(block), color.mix(0.55).filled()));
        let series = chart.draw_series(filled)?;
        if of_role.clone().next().is_some() {
            let name = format!("{role:?}").to_lowercase();
            series.label(name).legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 16, y + 6)], color.filled()));
        }
        chart.draw_series(of_role.map(|block| Rectangle::new(corners(block), BLACK.mix(0.6).stroke_width(1))))?;
    }
    let curve = LineSeries::new(live(blocks).into_iter().map(|(at, bytes)| (at as f64, bytes as f64 / unit)), &RED);
    chart.draw_series(curve)?.label("live bytes").legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], RED));
    let bound = [begin, end].map(|at| (at as f64, lower_bound as f64 / unit));
    let line = LineSeries::new(bound, BLACK.stroke_width(2));
    chart.draw_series(line)?.label("lower bound").legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK));

    // Names where they fit.
    let center = Pos::new(HPos::Center, VPos::Center);
    let style = ("sans-serif", 11).into_font().color(&BLACK).pos(center);
    let names = blocks.iter().filter_map(|block| {
        let wide = (block.end - block.begin) as f64 / (end - begin) as f64 * f64::from(SIZE.0);
        let high = block.bytes as f64 / unit / height * f64::from(SIZE.1);
        let fits = !block.name.is_empty() && wide > 7.0 * block.name.len() as f64 && high > 14.0;
        let middle = ((block.begin + block.end) as f64 / 2.0, (block.offset as f64 + block.bytes as f64 / 2.0) / unit);
        fits.then(|| Text::new(block.name.clone(), middle, style.clone()))
    });
    chart.draw_series(names)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

fn color(role: Role) -> RGBColor {
    match role {
        Role::Handoff => RGBColor(230, 140, 40),
        Role::Output => RGBColor(60, 150, 80),
        _ => RGBColor(70, 120, 190),
    }
}

/// The bytes that are live, as corners of a stepped curve.
fn live(blocks: &[Block]) -> Vec<(u64, usize)> {
    let mut changes: Vec<(u64, isize)> = Vec::new();
    for block in blocks {
        // Blocks are not larger than `isize::MAX`.
        let bytes = isize::try_from(block.bytes).unwrap_or(isize::MAX);
        changes.extend([(block.begin, bytes), (block.end, -bytes)]);
    }
    // What ends goes before what begins.
    changes.sort_unstable();
    let (mut now, mut curve) = (0_isize, Vec::new());
    for (at, change) in changes {
        curve.push((at, now.unsigned_abs()));
        now += change;
        curve.push((at, now.unsigned_abs()));
    }
    curve
}
