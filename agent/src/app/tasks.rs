//! The root tasks: each has a name, and the first that ends before it should ends the agent.

use std::{future::Future, process::ExitCode, thread, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::host::priority;

/// How long the tasks have to end once they are told to.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Tasks {
    stop: CancellationToken,
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
}

impl Tasks {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            stop,
            set: JoinSet::new(),
        }
    }

    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn_fallible(name, async move {
            task.await;
            Ok(())
        });
    }

    pub(super) fn spawn_fallible(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// The same with a thread of its own that runs before all ordinary ones: for a task that has
    /// little to do and must not be held up by what else the node is busy with. What it spawns in
    /// turn is on the ordinary threads.
    pub(super) fn spawn_ahead(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> anyhow::Result<()> {
        let (mut ended_tx, ended) = oneshot::channel();
        let runtime = Handle::current();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                priority::raise(name);
                let result = runtime.block_on(async {
                    tokio::select! {
                        biased;
                        // Dropped like any other task, before the runtime goes.
                        () = ended_tx.closed() => None,
                        result = task => Some(result),
                    }
                });
                if let Some(result) = result {
                    // Nobody is left to hear it where the agent did not wait any longer.
                    let _: Result<(), _> = ended_tx.send(result);
                }
            })
            .with_context(|| format!("start a thread for the {name}"))?;
        self.spawn_fallible(name, async move {
            let panicked = |_: oneshot::error::RecvError| anyhow::anyhow!("its thread panicked");
            ended.await.map_err(panicked)?
        });
        Ok(())
    }

    /// Waits for the first task that ends. An end that nobody asked for is an error.
    pub(super) async fn first_end(&mut self) -> anyhow::Result<()> {
        match self.set.join_next().await {
            Some(ended) => self.judge(ended),
            None => std::future::pending().await,
        }
    }

    fn judge(
        &self,
        ended: Result<(&'static str, anyhow::Result<()>), JoinError>,
    ) -> anyhow::Result<()> {
        match ended {
            Ok((_, Ok(()))) if self.stop.is_cancelled() => Ok(()),
            Ok((name, Ok(()))) => anyhow::bail!("{name} ended although nobody asked it to"),
            Ok((name, Err(error))) => Err(error.context(format!("{name} failed"))),
            Err(error) => Err(anyhow::Error::new(error).context("a task panicked")),
        }
    }

    /// Tells every task to stop and waits for their ends.
    pub(super) async fn finish(&mut self, code: ExitCode) -> anyhow::Result<ExitCode> {
        self.stop.cancel();
        let all = async {
            while let Some(ended) = self.set.join_next().await {
                self.judge(ended)?;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(PATIENCE, all).await {
            Ok(ended) => ended.map(|()| code),
            Err(_) => {
                tracing::warn!(
                    seconds = PATIENCE.as_secs(),
                    "Some tasks did not end in time"
                );
                Ok(code)
            }
        }
    }
}

/// Resolves at the first SIGTERM or SIGINT; a second one ends the process at once (CFG-30).
pub(super) async fn signals(stop: CancellationToken) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("Signals cannot be received");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("Stopping; the pods go on");
    stop.cancel();
    let second = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        #[expect(clippy::disallowed_methods, reason = "the second signal means now")]
        std::process::exit(1);
    };
    #[expect(clippy::disallowed_methods, reason = "lives as long as the process")]
    drop(tokio::spawn(second));
}

/// `READY=1` to systemd, where there is one (CFG-14).
pub(super) fn tell_ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "systemd could not be told that the agent is ready");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_ahead_has_a_thread_of_its_name_and_ends_when_asked() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let (told_tx, told) = oneshot::channel();
        let task = async move {
            let name = thread::current().name().map(str::to_owned);
            told_tx.send(name).unwrap();
            stop.cancelled().await;
            Ok(())
        };
        tasks.spawn_ahead("first", task).unwrap();
        assert_eq!(told.await.unwrap().as_deref(), Some("first"));
        assert!(tasks.finish(ExitCode::SUCCESS).await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_ahead_ends_the_agent_and_says_whose_it_was() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let task = async { panic!("on purpose") };
        tasks.spawn_ahead("first", task).unwrap();
        let error = tasks.first_end().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "first failed: its thread panicked");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_ahead_is_dropped_with_the_others() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let (held, dropped) = oneshot::channel::<()>();
        let task = async move {
            let _held = held;
            std::future::pending().await
        };
        tasks.spawn_ahead("first", task).unwrap();
        drop(tasks);
        assert!(dropped.await.is_err());
    }
}
