//! Opens the kernel's events for the PLEG: programs attached first, then the pods' cgroups walked.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    host::{bpf, hierarchy::Hierarchy},
    pleg::{KernelOpener, KernelSource},
    telemetry::chain,
};

/// News between the reader's thread and the PLEG: what a storm of some hundred containers sends
/// while the PLEG is at work. Beyond it the reader counts a gap instead of waiting.
const NEWS: usize = 8192;

pub(super) fn opener(hierarchy: Hierarchy, ring_bytes: u32, pods_root: PathBuf) -> KernelOpener {
    Arc::new(move || {
        let settings = bpf::Settings {
            ring_bytes,
            ..bpf::Settings::default()
        };
        let (programs, reader) =
            bpf::open(&settings, &hierarchy).map_err(|error| chain(&error).to_string())?;
        let found = programs
            .follow(&pods_root)
            .map_err(|error| chain(&error).to_string())?;
        let (news_tx, news) = mpsc::channel(NEWS);
        let stop = CancellationToken::new();
        let reading = reader.run(news_tx, stop.clone());
        let reading = async move {
            if let Err(error) = reading.await {
                tracing::error!(error = %chain(&error), "The kernel's events cannot be read any more");
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the PLEG's task holds its handle and ends it"
        )]
        let reader = tokio::spawn(reading);
        Ok(KernelSource {
            programs,
            news,
            pods_root: pods_root.clone(),
            found,
            reader,
            stop,
        })
    })
}
