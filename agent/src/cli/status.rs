//! `skep status`, `skep relist`, `skep version`.

use std::process::ExitCode;

use super::{args::OutputOption, client::Client, output, table::Table};
use crate::{config::run::KUBERNETES_VERSION, server::wire};

pub(super) async fn status(client: &Client, options: &OutputOption) -> anyhow::Result<ExitCode> {
    let status: wire::Status = client.get("/v1/status").await?;
    output::show(options.output, &status, || status_text(&status))?;
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &wire::Status) -> String {
    let agent = &status.agent;
    let mut facts = Table::new(&["agent", &agent.version]);
    let unknown = || "unknown".to_owned();
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("node", agent.node.clone());
    fact("ready", status.is_ready.to_string());
    fact("pleg mode", agent.mode.clone().unwrap_or_else(unknown));
    fact("runtime", agent.runtime.clone().unwrap_or_else(unknown));
    fact("endpoint", agent.runtime_endpoint.clone());
    for (role, pid) in &agent.pids {
        fact(&format!("pid of {role}"), pid.to_string());
    }
    let mut parts = Table::new(&["PART", "STATE", "WHAT"]);
    for part in &status.parts {
        parts.push(vec![
            part.part.clone(),
            part.grade.clone(),
            part.text.clone(),
        ]);
    }
    let mut text = format!("{}\n{}", facts.take(), parts.take());
    if !agent.refusals.is_empty() {
        let mut refusals = Table::new(&["REFUSED", "WHY"]);
        for refusal in &agent.refusals {
            refusals.push(vec![refusal.origin.clone(), refusal.message.clone()]);
        }
        text.push('\n');
        text.push_str(&refusals.take());
    }
    text
}

/// Fails where something was missed, so that scripts can tell.
pub(super) async fn relist(client: &Client, options: &OutputOption) -> anyhow::Result<ExitCode> {
    let report: wire::ListingReport = client.post("/v1/relist", &()).await?;
    output::show(options.output, &report, || relist_text(&report))?;
    Ok(if report.missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn relist_text(report: &wire::ListingReport) -> String {
    let mut text = format!(
        "listed {} sandboxes and {} containers; {} changes had been missed\n",
        report.sandboxes,
        report.containers,
        report.missed.len()
    );
    for missed in &report.missed {
        text.push_str("missed: ");
        text.push_str(missed);
        text.push('\n');
    }
    text
}

pub(super) fn version(options: &OutputOption) -> anyhow::Result<ExitCode> {
    let version = serde_json::json!({
        "skep": env!("CARGO_PKG_VERSION"),
        "kubernetes": KUBERNETES_VERSION,
    });
    output::show(options.output, &version, || {
        format!(
            "skep {} (Kubernetes {KUBERNETES_VERSION})\n",
            env!("CARGO_PKG_VERSION")
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_parts_and_refusals() {
        let status = wire::Status {
            agent: wire::Description {
                version: "0.1.0".into(),
                node: "node1".into(),
                mode: Some("listing".into()),
                runtime_endpoint: "unix:///run/x.sock".into(),
                pids: [("agent".into(), 7)].into(),
                refusals: vec![wire::SourceRefusal {
                    origin: "/manifests/a.yaml".into(),
                    message: "spec.containers: Required value".into(),
                }],
                ..wire::Description::default()
            },
            is_ready: true,
            parts: vec![wire::PartState {
                part: "pleg".into(),
                grade: "degraded".into(),
                text: "no BTF".into(),
                since: None,
            }],
        };
        assert_eq!(
            status_text(&status),
            "\
agent          0.1.0
node           node1
ready          true
pleg mode      listing
runtime        unknown
endpoint       unix:///run/x.sock
pid of agent   7

PART   STATE      WHAT
pleg   degraded   no BTF

REFUSED             WHY
/manifests/a.yaml   spec.containers: Required value
"
        );
    }

    #[test]
    fn a_listing_says_what_was_missed() {
        let report = wire::ListingReport {
            sandboxes: 2,
            containers: 3,
            missed: vec!["container abc exited".into()],
        };
        assert_eq!(
            relist_text(&report),
            "listed 2 sandboxes and 3 containers; 1 changes had been missed\n\
             missed: container abc exited\n"
        );
    }
}
