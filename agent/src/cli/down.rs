//! `skep down`.

use std::{path::Path, process::ExitCode};

use http::Method;

use super::{
    args::OutputOption,
    client::{Client, Error},
    output,
};
use crate::{app, server::wire};

/// Asks the agent; where none runs, what it left running is stopped without one.
pub(super) async fn down(
    client: &Client,
    root: &Path,
    options: &OutputOption,
) -> anyhow::Result<ExitCode> {
    let mut answer = match client.stream(Method::POST, "/v1/down").await {
        Ok(answer) => answer,
        Err(Error::NoAgent { .. }) => {
            let done = app::down_without_agent(root).await?;
            for message in done {
                let progress = wire::DownProgress {
                    message,
                    pod: None,
                    left: 0,
                    has_failed: false,
                };
                show(options, &progress)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error.into()),
    };
    let mut has_failed = false;
    while let Some(progress) = answer.next_line::<wire::DownProgress>().await? {
        has_failed |= progress.has_failed;
        show(options, &progress)?;
    }
    Ok(if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn show(options: &OutputOption, progress: &wire::DownProgress) -> anyhow::Result<()> {
    output::show_one(options.output, progress, || {
        format!("{}\n", progress.message)
    })
}
