//! `skep events`: the timeline.

use std::process::ExitCode;

use http::Method;
use jiff::{Timestamp, tz::TimeZone};

use super::{
    args::EventsArguments,
    client::{Client, with_query},
    key_of,
    output::{self, Format},
    resolve,
    table::Table,
};
use crate::{
    server::wire,
    types::{clock, id::PodKey, timeline::Entry},
};

/// Entries that are laid out together; live ones come one by one.
const PAGE: usize = 1000;

pub(super) async fn events(client: &Client, options: &EventsArguments) -> anyhow::Result<ExitCode> {
    let EventsArguments {
        pod,
        follow,
        since,
        output,
    } = options;
    let mut query = Vec::new();
    let mut named = None;
    if let Some(argument) = pod {
        let (key, is_known) = find_even_gone(client, argument).await?;
        query.push(("pod", key.to_string()));
        named = Some((argument, is_known));
    }
    if let Some(since) = since {
        query.push(("since", since.moment(clock::wall_now()).to_string()));
    }
    // The past first, laid out as one table; then what happens, without a hole in between.
    if *follow {
        query.push(("follow", true.to_string()));
    }
    let mut answer = client
        .stream(Method::GET, &with_query("/v1/events", &query))
        .await?;
    let mut table = Table::new(&[
        "TIME",
        "POD",
        "CONTAINER",
        "REASON",
        "KNOWN AFTER",
        "MESSAGE",
    ]);
    let zone = TimeZone::system();
    let mut count = 0_usize;
    while let Some(entry) = answer.next_line::<Entry>().await? {
        count += 1;
        if output.output == Format::Table {
            table.push(row(&entry, &zone));
            // A page is shown when it is full, or when nothing more is waiting to be read.
            if count.is_multiple_of(PAGE) || (*follow && !answer.has_line()) {
                output::print(&table.take())?;
            }
        } else {
            output::show_one(output.output, &entry, String::new)?;
        }
    }
    if count == 0
        && let Some((argument, false)) = named
    {
        // Neither here now nor in the past.
        let pods: wire::Pods = client.get("/v1/pods").await?;
        let keys: Vec<PodKey> = pods.pods.iter().map(key_of).collect();
        resolve::resolve(argument, &keys, &pods.node)?;
    }
    if output.output == Format::Table {
        output::print(&table.take())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A pod that is gone is taken by its full name; true where it is here.
async fn find_even_gone(client: &Client, argument: &str) -> anyhow::Result<(PodKey, bool)> {
    let pods: wire::Pods = client.get("/v1/pods").await?;
    let keys: Vec<PodKey> = pods.pods.iter().map(key_of).collect();
    match resolve::resolve(argument, &keys, &pods.node) {
        Ok(key) => Ok((key.clone(), true)),
        Err(error @ resolve::Error::Ambiguous { .. }) => Err(error.into()),
        Err(resolve::Error::NoPods { .. } | resolve::Error::Unknown { .. }) => {
            let (namespace, name) = argument.split_once('/').unwrap_or(("default", argument));
            Ok((PodKey::new(namespace, name), false))
        }
    }
}

fn row(entry: &Entry, zone: &TimeZone) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        entry
            .agent_at
            .to_zoned(zone.clone())
            .strftime("%Y-%m-%d %H:%M:%S%.3f")
            .to_string(),
        entry.pod.as_ref().map_or_else(dash, ToString::to_string),
        entry.container.clone().unwrap_or_else(dash),
        entry.reason.clone(),
        offsets(entry).unwrap_or_else(dash),
        entry.message.clone(),
    ]
}

/// When each knew, after the first: `kernel +0.0  agent +0.4  runtime +57.3 ms`. None where only
/// the agent is asked for: its own events have no other party.
fn offsets(entry: &Entry) -> Option<String> {
    let runtime = entry.runtime_known_at.or(entry.runtime_at);
    let mut known: Vec<(&str, Timestamp)> = [
        ("kernel", entry.kernel_at),
        ("agent", Some(entry.agent_at)),
        ("runtime", runtime),
    ]
    .into_iter()
    .filter_map(|(who, at)| Some((who, at?)))
    .collect();
    if known.len() < 2 {
        return None;
    }
    known.sort_by_key(|(_, at)| *at);
    let (_, first) = known[0];
    let parts: Vec<String> = known
        .iter()
        .map(|(who, at)| {
            let nanos = at.as_nanosecond() - first.as_nanosecond();
            // Tenths of a millisecond, rounded.
            let tenths = (nanos + 50_000) / 100_000;
            format!("{who} +{}.{}", tenths / 10, tenths % 10)
        })
        .collect();
    Some(format!("{} ms", parts.join("  ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::timeline::Level;

    fn died() -> Entry {
        let at = |text: &str| Some(text.parse().unwrap());
        Entry {
            agent_at: "2024-01-01T00:00:00.0004Z".parse().unwrap(),
            kernel_at: at("2024-01-01T00:00:00Z"),
            runtime_at: at("2024-01-01T00:00:00.0031Z"),
            runtime_known_at: at("2024-01-01T00:00:00.05731Z"),
            pod: Some(PodKey::new("default", "web")),
            uid: None,
            container: Some("app".into()),
            container_id: None,
            level: Level::Warning,
            reason: "Died".into(),
            message: "exit code 137".into(),
        }
    }

    #[test]
    fn each_partys_time_is_shown_after_the_first() {
        assert_eq!(
            offsets(&died()).unwrap(),
            "kernel +0.0  agent +0.4  runtime +57.3 ms"
        );
        let mut late = died();
        late.kernel_at = None;
        assert_eq!(offsets(&late).unwrap(), "agent +0.0  runtime +56.9 ms");
        late.runtime_known_at = None;
        late.runtime_at = Some("2024-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(offsets(&late).unwrap(), "runtime +0.0  agent +0.4 ms");
        late.runtime_at = None;
        assert_eq!(offsets(&late), None);
    }

    #[test]
    fn a_row_has_the_agents_time_in_milliseconds() {
        assert_eq!(
            row(&died(), &TimeZone::UTC),
            [
                "2024-01-01 00:00:00.000",
                "default/web",
                "app",
                "Died",
                "kernel +0.0  agent +0.4  runtime +57.3 ms",
                "exit code 137",
            ]
        );
    }
}
