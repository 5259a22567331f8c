//! The table as a picture: how much of its aim each figure reaches.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::figure::Figure;
use crate::report::{Results, number};

const WIDTH: u32 = 1100;
const ROW: u32 = 30;
const MARGIN: u32 = 60;
/// Where the bars begin, in pixels.
const TEXT: u32 = 560;
/// What the chart shows of a figure: this many times its aim, and what is beyond is cut.
const SHOWN: f64 = 2.0;

/// Draws every figure that has an aim or something required of it.
pub(crate) fn draw(results: &Results, file: &Path) -> Result<()> {
    let rows: Vec<(&Figure, f64)> = results
        .figures
        .iter()
        .filter_map(|figure| Some((figure, figure.bounds.aim.or(figure.bounds.now)?)))
        .collect();
    let count = u32::try_from(rows.len())?;
    let size = (WIDTH, 2 * MARGIN + ROW * count);
    let root = SVGBackend::new(file, size).into_drawing_area();
    picture(&root, &rows, &results.machine).map_err(|error| anyhow!("the chart: {error}"))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn picture(root: &Area<'_>, rows: &[(&Figure, f64)], machine: &str) -> Drawn {
    root.fill(&WHITE)?;
    let (_, height) = root.dim_in_pixel();
    let text = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    let title =
        format!("Figures as a part of their aims (1.0; further right is better): {machine}");
    root.draw(&Text::new(title, (10, 15), text(15)))?;
    for mark in [0.0, 0.5, 1.0, 1.5, 2.0] {
        let x = across(mark)?;
        let line = if mark == 1.0 {
            BLACK.stroke_width(2)
        } else {
            BLACK.mix(0.2).into()
        };
        let (top, bottom) = (i32::try_from(MARGIN)?, i32::try_from(height - MARGIN)?);
        root.draw(&PathElement::new([(x, top), (x, bottom)], line))?;
        root.draw(&Text::new(
            format!("{mark:.1}"),
            (x - 8, bottom + 8),
            text(13),
        ))?;
    }
    for (row, (figure, aim)) in rows.iter().enumerate() {
        let top = i32::try_from(MARGIN + ROW * u32::try_from(row)?)?;
        let better = figure.bounds.better;
        let part = better.part(figure.score.median, *aim);
        // What is required now, in the same measure.
        let required = figure.bounds.now.map(|now| better.part(now, *aim));
        let misses = required.is_some_and(|required| part < required);
        let colour = match (misses, part >= 1.0) {
            (true, _) => RGBColor(200, 60, 50),
            (false, true) => RGBColor(50, 140, 80),
            (false, false) => RGBColor(70, 110, 180),
        };
        let label = format!(
            "{}: {} {}",
            figure.what,
            number(figure.score.median),
            figure.score.unit
        );
        root.draw(&Text::new(label, (10, top + 9), text(13)))?;
        let bar = [(across(0.0)?, top + 6), (across(part)?, top + 24)];
        root.draw(&Rectangle::new(bar, colour.filled()))?;
        if let Some(required) = required {
            let x = across(required)?;
            let line = BLACK.stroke_width(2);
            root.draw(&PathElement::new([(x, top + 3), (x, top + 27)], line))?;
        }
    }
    let key = "thick line: the aim; short mark: required now; red: below what is required, green: aim reached";
    let bottom = i32::try_from(height)? - 20;
    root.draw(&Text::new(key, (10, bottom), text(13)))?;
    root.present()?;
    Ok(())
}

/// Pixels of a part of the aim.
#[expect(clippy::cast_possible_truncation, reason = "a number of pixels")]
fn across(part: f64) -> Result<i32, std::num::TryFromIntError> {
    let width = f64::from(WIDTH - TEXT - 20);
    let pixels = (part.clamp(0.0, SHOWN) / SHOWN * width) as i32;
    Ok(i32::try_from(TEXT)? + pixels)
}
