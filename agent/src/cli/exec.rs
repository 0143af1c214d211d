//! `skep exec`: a command to its end, its output and its exit code.

use std::{io::Write as _, process::ExitCode};

use super::{
    args::ExecArguments,
    client::Client,
    find_pod, key_of,
    log::defaulted,
    output::{self, Format},
};
use crate::server::wire;

pub(super) async fn exec(client: &Client, options: ExecArguments) -> anyhow::Result<ExitCode> {
    let ExecArguments {
        pod,
        container,
        timeout,
        output,
        command,
    } = options;
    let pod = find_pod(client, &pod).await?;
    let container = container.unwrap_or_else(|| defaulted(&pod.object));
    let key = key_of(&pod);
    let request = wire::ExecRequest {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container: Some(container),
        command,
        timeout_seconds: timeout.map_or(0, |timeout| timeout.as_secs().max(1).unsigned_abs()),
    };
    let result: wire::ExecResult = client.post("/v1/exec", &request).await?;
    if output.output == Format::Table {
        output::print_bytes(&result.stdout.0)?;
        std::io::stderr().write_all(&result.stderr.0)?;
    } else {
        let text = serde_json::json!({
            "code": result.code,
            "stdout": String::from_utf8_lossy(&result.stdout.0),
            "stderr": String::from_utf8_lossy(&result.stderr.0),
        });
        output::show(output.output, &text, String::new)?;
    }
    Ok(exit_code(result.code))
}

/// Codes that a process cannot have (a runtime's -1) become 255.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
