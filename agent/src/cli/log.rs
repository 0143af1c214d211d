//! `skep logs`.

use std::process::ExitCode;

use http::Method;
use k8s_openapi::api::core::v1::Pod as PodObject;

use super::{
    args::LogsArguments,
    client::{Client, with_query},
    find_pod, key_of, output,
};
use crate::{server::wire, types::clock};

pub(super) async fn logs(client: &Client, options: &LogsArguments) -> anyhow::Result<ExitCode> {
    let LogsArguments {
        pod,
        container,
        follow,
        tail,
        since,
        previous,
        timestamps,
    } = options;
    let pod = find_pod(client, pod).await?;
    let container = match container {
        Some(container) => container.clone(),
        None => defaulted(&pod.object),
    };
    let mut query = vec![("container", container)];
    for (name, is_on) in [
        ("follow", *follow),
        ("previous", *previous),
        ("timestamps", *timestamps),
    ] {
        if is_on {
            query.push((name, true.to_string()));
        }
    }
    if let Some(lines) = tail {
        query.push(("tailLines", lines.to_string()));
    }
    if let Some(since) = since {
        query.push(("sinceTime", since.moment(clock::wall_now()).to_string()));
    }
    let key = key_of(&pod);
    let path = format!("/v1/pods/{}/{}/log", key.namespace, key.name);
    let mut answer = client
        .stream(Method::GET, &with_query(&path, &query))
        .await?;
    while let Some(piece) = answer.next().await? {
        output::print_bytes(&piece)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The pod's default container; where there are others, they are named on stderr, as `kubectl`
/// does.
pub(super) fn defaulted(pod: &PodObject) -> String {
    let container = wire::default_container(pod).unwrap_or_default().to_owned();
    if let Some(note) = note(pod, &container) {
        eprintln!("{note}");
    }
    container
}

fn note(pod: &PodObject, container: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let regular = spec
        .containers
        .iter()
        .map(|container| container.name.clone());
    let init = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| format!("{} (init)", container.name));
    let all: Vec<String> = regular.chain(init).collect();
    (all.len() > 1).then(|| {
        format!(
            "Defaulted container {container:?} out of: {}",
            all.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_was_made_is_told_only_where_there_was_one() {
        let pod = |spec: &str| serde_saphyr::from_str::<PodObject>(spec).unwrap();
        let one = pod("spec: {containers: [{name: app}]}");
        assert_eq!(note(&one, "app"), None);
        let three =
            pod("spec: {containers: [{name: app}, {name: b}], initContainers: [{name: setup}]}");
        assert_eq!(
            note(&three, "app").unwrap(),
            r#"Defaulted container "app" out of: app, b, setup (init)"#
        );
    }
}
