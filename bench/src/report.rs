//! Tables and plots of what the turns wrote: of each file of records its newest run, which is
//! compared within itself only.
//!
//! All figures come from the samples; nothing is known of a run but its lines.

mod data;
mod judge;
mod measures;
mod plots;
mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use self::data::Run;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder with the files of records, `NAME.jsonl`.
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// The page to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The folder for the plots.
    #[arg(long, value_name = "DIR")]
    plots: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let runs = read(&args.results)?;
    fs::create_dir_all(&args.plots).with_context(|| format!("making {}", args.plots.display()))?;
    let base = args.out.parent().unwrap_or(Path::new(""));
    let mut page = tables::HEAD.to_owned();
    for run in &runs {
        let mut links = Vec::new();
        for plot in plots::draw(run)? {
            let file = args.plots.join(format!("{}-{}.svg", run.name, plot.name));
            fs::write(&file, &plot.svg).with_context(|| format!("writing {}", file.display()))?;
            let link = file.strip_prefix(base).unwrap_or(&file);
            links.push((plot.bench, plot.title, link.display().to_string()));
        }
        page.push_str(&tables::section(run, &links));
    }
    fs::write(&args.out, page).with_context(|| format!("writing {}", args.out.display()))
}

/// By name.
fn read(dir: &Path) -> Result<Vec<Run>> {
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.context("reading the folder of results")?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            files.push(file);
        }
    }
    files.sort();
    let mut runs = Vec::new();
    for file in files {
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let run = Run::newest(&name, &text).with_context(|| file.display().to_string())?;
        runs.extend(run);
    }
    if runs.is_empty() {
        bail!("{} has no records", dir.display());
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Records as a file has them.
    #[derive(Default)]
    pub(super) struct Lines(Vec<Value>);

    impl Lines {
        pub(super) fn add(
            &mut self,
            bench: &str,
            measure: &str,
            subject: &str,
            round: u32,
            samples: &[f64],
        ) {
            let unit = match measure {
                "agent_cpu" | "sum_cpu" | "runtime_cpu" => "mcores",
                "agent_rss" | "rss" => "MiB",
                "threads" => "count",
                _ => "ms",
            };
            self.0.push(json!({
                "run": "20260102T030405Z", "bench": bench, "measure": measure, "subject": subject,
                "round": round, "params": {}, "n": samples.len(), "p50": 0.0, "p90": 0.0,
                "p99": 0.0, "max": 0.0, "unit": unit, "samples": samples,
                "host": {"kernel": "6.1", "cgroup": "v2", "cores": 2, "memory_mib": 1000,
                         "load": 0.5},
                "versions": {"agent": "1", "containerd": "2", "runc": "3"},
            }));
        }

        /// The line that was added last.
        pub(super) fn last(&mut self) -> &mut Value {
            self.0.last_mut().expect("a line")
        }

        pub(super) fn text(&self) -> String {
            self.0.iter().map(|line| format!("{line}\n")).collect()
        }
    }

    pub(super) fn run_of(lines: &Lines) -> Run {
        Run::newest("pleg", &lines.text())
            .expect("records")
            .expect("a run")
    }

    #[test]
    fn only_the_newest_run_of_a_file_counts() {
        let mut lines = Lines::default();
        lines.add("exit-detect", "known", "kubelet", 1, &[1.0]);
        lines.last()["run"] = "20250102T030405Z".into();
        lines.add("exit-detect", "known", "floor", 1, &[1.0]);
        let run = run_of(&lines);
        assert_eq!(run.id, "20260102T030405Z");
        assert_eq!(run.lines.len(), 1);
    }

    #[test]
    fn a_line_that_is_no_record_is_named() {
        let error = Run::newest("pleg", "{}\n").unwrap_err();
        assert_eq!(error.to_string(), "line 1 is no record");
        assert!(Run::newest("pleg", "").unwrap().is_none());
    }

    #[test]
    fn page_and_plots_are_written_and_linked() {
        let dir = std::env::temp_dir().join(format!("skep-report-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut lines = Lines::default();
        lines.add("exit-detect", "known", "kubelet", 1, &[500.0, 600.0]);
        lines.add("exit-detect", "known", "skep-kernel", 1, &[0.5, 0.6]);
        fs::write(dir.join("pleg.jsonl"), lines.text()).unwrap();
        let args = Args {
            results: dir.clone(),
            out: dir.join("RESULTS.md"),
            plots: dir.join("plots"),
        };
        run(&args).unwrap();
        let page = fs::read_to_string(&args.out).unwrap();
        assert!(page.contains("(plots/pleg-exit-known.svg)"), "{page}");
        let plot = fs::read_to_string(dir.join("plots/pleg-exit-known.svg")).unwrap();
        assert!(plot.contains("skep-kernel"), "{plot}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
