//! Plots of a run, as SVG: one picture has one or two panels with a legend beside each.
//!
//! Times are on a logarithmic axis: what differs by a factor of a thousand would be a line at the
//! edge on any other.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, cartesian::Cartesian2d, types::RangedCoordf64},
    prelude::{
        Circle, Color as _, DashedLineSeries, DrawingArea, DrawingBackend, IntoDrawingArea as _,
        IntoFont as _, LineSeries, PathElement, RGBColor, SVGBackend, Text, WHITE,
    },
    style::ShapeStyle,
};

use super::{
    data::{Group, Run, Series},
    tables::{number, quantity},
};
use crate::{
    record::{Bench, Subject},
    stats::{self, quantile},
};

/// A picture.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    /// The last part of the file's name.
    pub(super) name: &'static str,
    /// Where the page shows it.
    pub(super) bench: Bench,
    pub(super) title: &'static str,
    pub(super) svg: String,
}

const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 380;
/// The rest of the width is the legend's.
const CHART_WIDTH: u32 = 690;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xd8, 0xd8, 0xd8);
const FAINT: RGBColor = RGBColor(0xee, 0xee, 0xee);

/// Told apart by eyes of all kinds (Okabe and Ito).
fn color(subject: Subject) -> RGBColor {
    match subject {
        Subject::Kubelet => RGBColor(0xd5, 0x5e, 0x00),
        Subject::KubeletEvented => RGBColor(0xe6, 0x9f, 0x00),
        Subject::SkepKernel => RGBColor(0x00, 0x72, 0xb2),
        Subject::SkepStream => RGBColor(0x56, 0xb4, 0xe9),
        Subject::SkepListing => RGBColor(0x00, 0x9e, 0x73),
        Subject::Floor => RGBColor(0x77, 0x77, 0x77),
    }
}

fn name(subject: Subject) -> &'static str {
    match subject {
        Subject::Kubelet => "kubelet",
        Subject::KubeletEvented => "kubelet, EventedPLEG",
        Subject::SkepKernel => "skep-kernel",
        Subject::SkepStream => "skep-stream",
        Subject::SkepListing => "skep-listing",
        Subject::Floor => "floor: bare runtime",
    }
}

/// One entry of the legend, and what it stands for.
struct Curve {
    name: String,
    /// The legend's second line.
    note: String,
    color: RGBColor,
    is_dashed: bool,
    lines: Vec<Vec<(f64, f64)>>,
    dots: Vec<(f64, f64)>,
}

enum Axis {
    /// Milliseconds, as powers of ten.
    Time {
        low: f64,
        high: f64,
    },
    Linear {
        high: f64,
    },
}

struct Panel {
    title: String,
    x: Axis,
    x_label: &'static str,
    y_label: &'static str,
    y_high: f64,
    curves: Vec<Curve>,
    /// Below the legend, a line each.
    remark: &'static [&'static str],
}

/// Beside every plot of CPU and memory.
const NOT_YET: &[&str] = &[
    "The kubelet also gathers statistics,",
    "watches for eviction and can probe,",
    "which Skep does not do yet.",
];

/// Those that the run has records for.
pub(super) fn draw(run: &Run) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    let mut add = |name, bench, title, panels: Vec<Panel>| -> Result<()> {
        if !panels.is_empty() {
            let svg = picture(&panels).map_err(|why| anyhow!("drawing {name}: {why}"))?;
            plots.push(Plot {
                name,
                bench,
                title,
                svg,
            });
        }
        Ok(())
    };
    let known = "When a killed container's end is known";
    add("exit-known", Bench::ExitDetect, known, exit_known(run))?;
    let storm = "Containers killed at once: ends known, replacements running";
    add("exit-storm", Bench::ExitStorm, storm, exit_storm(run))?;
    let cpu = "Idle CPU over the number of pods";
    add("idle-cpu", Bench::IdleCost, cpu, idle_cpu(run))?;
    let memory = "Resident memory of the agent over the number of pods";
    add("idle-memory", Bench::IdleCost, memory, idle_memory(run))?;
    Ok(plots)
}

/// The series with the most pods, or whatever comes last.
fn largest<'a>(run: &'a Run, bench: Bench, measure: &str) -> Option<&'a Series> {
    run.series(bench, measure).into_iter().next_back()
}

fn exit_known(run: &Run) -> Vec<Panel> {
    let Some(series) = largest(run, Bench::ExitDetect, "known") else {
        return Vec::new();
    };
    let mut curves: Vec<_> = run
        .subjects()
        .into_iter()
        .filter_map(|subject| {
            let group = run.group(series, subject)?;
            share_curve(name(subject).to_owned(), color(subject), false, group)
        })
        .collect();
    // What any agent could know at best, and what one that waits for the runtime could.
    for (measure, words, gray) in [
        ("kernel", "process gone", RGBColor(0x99, 0x99, 0x99)),
        (
            "runtime",
            "the runtime's own event",
            RGBColor(0x55, 0x55, 0x55),
        ),
    ] {
        let reference = Series {
            measure: measure.to_owned(),
            ..series.clone()
        };
        let group = run.group(&reference, Subject::Floor);
        curves.extend(group.and_then(|group| share_curve(words.to_owned(), gray, true, group)));
    }
    let lines = curves.iter().flat_map(|curve| curve.lines.iter().flatten());
    let Some((low, high)) = decades(lines.map(|(x, _)| *x)) else {
        return Vec::new();
    };
    for curve in &mut curves {
        finish_share(curve, low, high);
    }
    vec![Panel {
        title: format!("Kill to pod event ({})", series.words()),
        x: Axis::Time { low, high },
        x_label: "time after the kill",
        y_label: "ends known, %",
        y_high: 101.0,
        curves,
        remark: &[],
    }]
}

/// The share of the samples up to each time, in steps.
fn share_curve(name: String, color: RGBColor, is_dashed: bool, group: &Group) -> Option<Curve> {
    let mut samples = group.samples();
    samples.sort_by(f64::total_cmp);
    let median = stats::median(&samples)?;
    // What was lost never comes.
    let all = count(samples.len()) + count(usize::try_from(group.lost()).unwrap_or(usize::MAX));
    let line = steps(&samples, |place| 100.0 * count(place) / all);
    Some(Curve {
        name,
        note: format!("median {}", quantity(median, &group.unit)),
        color,
        is_dashed,
        lines: vec![line],
        dots: Vec::new(),
    })
}

/// From the axis' beginning to its end.
fn finish_share(curve: &mut Curve, low: f64, high: f64) {
    for line in &mut curve.lines {
        line.insert(0, (low, 0.0));
        let last = line.last().map_or(0.0, |(_, y)| *y);
        line.push((high, last));
    }
}

/// A line that rises by one place at each sample; `y` of how many there were.
fn steps(sorted: &[f64], y: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
    let mut line = Vec::new();
    for (place, &sample) in sorted.iter().enumerate() {
        let x = place_of(sample);
        line.push((x, y(place)));
        line.push((x, y(place + 1)));
    }
    line
}

/// Milliseconds as a place on a logarithmic axis. Nothing is seen before a hundredth.
fn place_of(ms: f64) -> f64 {
    ms.max(0.01).log10()
}

/// Whole decades around all places.
fn decades(places: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let places: Vec<_> = places.collect();
    let (low, high) = quantile(&places, 0.0).zip(quantile(&places, 1.0))?;
    let (low, high) = (low.floor(), high.ceil());
    Some((low, if high > low { high } else { low + 1.0 }))
}

#[expect(clippy::cast_precision_loss, reason = "thousands at most")]
fn count(count: usize) -> f64 {
    count as f64
}

fn exit_storm(run: &Run) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (measure, title, y_label) in [
        ("detected", "Ends known", "ends known"),
        ("restarted", "Replacements running", "replacements running"),
    ] {
        let Some(series) = largest(run, Bench::ExitStorm, measure) else {
            continue;
        };
        let mut curves: Vec<_> = run
            .subjects()
            .into_iter()
            .filter_map(|subject| storm_curve(run, series, subject))
            .collect();
        if measure == "detected" {
            let kernel = Series {
                measure: "kernel".to_owned(),
                ..series.clone()
            };
            curves.extend(
                storm_curve(run, &kernel, Subject::Floor).map(|curve| Curve {
                    name: "process gone (floor)".to_owned(),
                    is_dashed: true,
                    ..curve
                }),
            );
        }
        let points = || curves.iter().flat_map(|curve| curve.lines.iter().flatten());
        let Some((low, high)) = decades(points().map(|(x, _)| *x)) else {
            continue;
        };
        let all: Vec<_> = points().map(|(_, y)| *y).collect();
        panels.push(Panel {
            title: format!("{title} after all were killed at once ({})", series.words()),
            x: Axis::Time { low, high },
            x_label: "time after each one's kill",
            y_label,
            y_high: quantile(&all, 1.0).unwrap_or(1.0) * 1.02,
            curves,
            remark: &[],
        });
    }
    panels
}

/// A line for each round.
fn storm_curve(run: &Run, series: &Series, subject: Subject) -> Option<Curve> {
    let group = run.group(series, subject)?;
    let mut lasts = Vec::new();
    let mut lines = Vec::new();
    for samples in group.rounds.values() {
        let mut samples = samples.clone();
        samples.sort_by(f64::total_cmp);
        lasts.extend(samples.last());
        lines.push(steps(&samples, count));
    }
    let last = stats::median(&lasts)?;
    Some(Curve {
        name: name(subject).to_owned(),
        note: format!("last after {}", quantity(last, &group.unit)),
        color: color(subject),
        is_dashed: false,
        lines,
        dots: Vec::new(),
    })
}

fn idle_cpu(run: &Run) -> Vec<Panel> {
    let per_pod = |slope| format!("{} mcores a pod", number(slope));
    [
        ("agent_cpu", "Idle CPU of the agent"),
        (
            "sum_cpu",
            "Idle CPU of agent, containerd and kernel programs together",
        ),
    ]
    .into_iter()
    .filter_map(|(measure, title)| over_pods(run, measure, title, "millicores", per_pod))
    .collect()
}

fn idle_memory(run: &Run) -> Vec<Panel> {
    let per_pod = |slope| format!("{} MiB a pod", number(slope));
    let title = "Resident memory of the agent";
    let panel = over_pods(run, "agent_rss", title, "MiB", per_pod);
    panel.into_iter().collect()
}

/// Each round's figures as dots, and the line through the medians.
fn over_pods(
    run: &Run,
    measure: &str,
    title: &str,
    y_label: &'static str,
    note: impl Fn(f64) -> String,
) -> Option<Panel> {
    let mut curves = Vec::new();
    for subject in run.subjects() {
        let points = run.points(Bench::IdleCost, measure, "pods", subject);
        let dots: Vec<_> = points.into_values().flatten().collect();
        let Some(slope) = stats::slope(&dots) else {
            continue;
        };
        curves.push(Curve {
            name: name(subject).to_owned(),
            note: note(slope),
            color: color(subject),
            is_dashed: false,
            lines: vec![medians(&dots)],
            dots,
        });
    }
    let dots = || curves.iter().flat_map(|curve| curve.dots.iter());
    let high = |of: fn(&(f64, f64)) -> f64| dots().map(of).fold(0.0, f64::max);
    let (x_high, y_high) = (high(|dot| dot.0), high(|dot| dot.1));
    (y_high > 0.0).then(|| Panel {
        title: title.to_owned(),
        x: Axis::Linear {
            high: x_high * 1.03,
        },
        x_label: "idle pods",
        y_label,
        y_high: y_high * 1.08,
        curves,
        remark: NOT_YET,
    })
}

/// At each place.
fn medians(dots: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut places: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for &(x, y) in dots {
        // Counts of pods are not negative, and so in the order of their bits.
        let place = places.entry(x.to_bits()).or_insert((x, Vec::new()));
        place.1.push(y);
    }
    let places = places.into_values();
    places
        .filter_map(|(x, values)| Some((x, stats::median(&values)?)))
        .collect()
}

type Error<B> = plotters::drawing::DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn picture(panels: &[Panel]) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let height = PANEL_HEIGHT * u32::try_from(panels.len())?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, panel) in root.split_evenly((panels.len(), 1)).iter().zip(panels) {
            let (chart, legend) = area.split_horizontally(CHART_WIDTH);
            draw_chart(&chart, panel)?;
            draw_legend(&legend, panel)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw_chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
) -> Result<(), Error<B>> {
    let (low, high) = match panel.x {
        Axis::Time { low, high } => (low, high),
        Axis::Linear { high } => (0.0, high),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 18).into_font().color(&INK))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(58)
        .build_cartesian_2d(low..high, 0.0..panel.y_high)?;
    let label = |place: &f64| match panel.x {
        Axis::Time { .. } => time_label(*place),
        Axis::Linear { .. } => number(*place),
    };
    if let Axis::Time { low, high } = panel.x {
        draw_decades(&mut chart, low, high, panel.y_high)?;
    }
    let ticks = match panel.x {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some decades"
        )]
        Axis::Time { low, high } => (high - low) as usize + 1,
        Axis::Linear { .. } => 8,
    };
    chart
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(ticks)
        .y_labels(6)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| number(*value))
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .x_desc(panel.x_label)
        .y_desc(panel.y_label)
        .draw()?;
    // The legend's first on top.
    for curve in panel.curves.iter().rev() {
        let style = line_style(curve);
        for line in &curve.lines {
            let line = line.iter().copied();
            if curve.is_dashed {
                chart.draw_series(DashedLineSeries::new(line, 5, 4, style))?;
            } else {
                chart.draw_series(LineSeries::new(line, style))?;
            }
        }
        let dots = curve.dots.iter();
        chart.draw_series(dots.map(|dot| Circle::new(*dot, 3, curve.color.mix(0.7).filled())))?;
    }
    Ok(())
}

/// Lines at twice to nine times each power of ten.
fn draw_decades<B: DrawingBackend>(
    chart: &mut ChartContext<'_, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    low: f64,
    high: f64,
    y_high: f64,
) -> Result<(), Error<B>> {
    let mut decade = low;
    while decade < high {
        let within = (2..10).map(|times| decade + f64::from(times).log10());
        chart.draw_series(
            within.map(|place| PathElement::new(vec![(place, 0.0), (place, y_high)], FAINT)),
        )?;
        decade += 1.0;
    }
    Ok(())
}

fn line_style(curve: &Curve) -> ShapeStyle {
    // Several rounds of one subject would cover the others'.
    let opacity = if curve.lines.len() > 1 { 0.75 } else { 1.0 };
    curve.color.mix(opacity).stroke_width(2)
}

fn draw_legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
) -> Result<(), Error<B>> {
    let faint = RGBColor(0x66, 0x66, 0x66);
    let mut y = 48;
    for curve in &panel.curves {
        let line = [(4, y + 7), (32, y + 7)];
        if curve.is_dashed {
            for x in [4, 14, 24] {
                let dash = vec![(x, y + 7), (x + 6, y + 7)];
                area.draw(&PathElement::new(dash, curve.color.stroke_width(3)))?;
            }
        } else {
            area.draw(&PathElement::new(line, curve.color.stroke_width(3)))?;
        }
        let font = |size| (FONT, size).into_font();
        area.draw(&Text::new(
            curve.name.clone(),
            (40, y),
            font(14).color(&INK),
        ))?;
        area.draw(&Text::new(
            curve.note.clone(),
            (40, y + 17),
            font(12).color(&faint),
        ))?;
        y += 40;
    }
    y += 4;
    for line in panel.remark {
        let font = (FONT, 12).into_font().color(&faint);
        area.draw(&Text::new(*line, (4, y), font))?;
        y += 16;
    }
    Ok(())
}

/// A power of ten of milliseconds.
fn time_label(place: f64) -> String {
    let ms = 10f64.powf(place);
    if ms >= 1000.0 {
        format!("{} s", number(ms / 1e3))
    } else if ms >= 0.999 {
        format!("{} ms", number(ms))
    } else {
        format!("{} µs", number(ms * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{Lines, run_of};

    #[test]
    fn times_are_labelled_in_their_own_unit() {
        assert_eq!(time_label(-1.0), "100 µs");
        assert_eq!(time_label(0.0), "1 ms");
        assert_eq!(time_label(4.0), "10 s");
    }

    #[test]
    fn what_was_lost_keeps_a_share_below_all() {
        let mut lines = Lines::default();
        lines.add("exit-detect", "known", "skep-kernel", 1, &[1.0, 10.0]);
        lines.last()["lost"] = 2.into();
        let panels = exit_known(&run_of(&lines));
        let line = &panels[0].curves[0].lines[0];
        assert_eq!(line.first(), Some(&(0.0, 0.0)));
        assert_eq!(line.last(), Some(&(1.0, 50.0)));
    }

    #[test]
    fn a_run_without_the_benches_has_no_plots() {
        let mut lines = Lines::default();
        lines.add("footprint", "rss", "kubelet", 1, &[80.0]);
        assert!(draw(&run_of(&lines)).unwrap().is_empty());
    }
}
