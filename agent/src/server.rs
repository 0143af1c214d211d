//! The agent's HTTP: health and metrics on TCP, the commands on a local socket.
//!
//! [`bind`] takes the addresses, so that a wrong one is known at start; [`Task::run`] serves them.
//! The server owns no state: [`Links`] has what it reads and whom it asks.
//!
//! | where | paths |
//! | --- | --- |
//! | healthz port | `/healthz`, `/readyz`, `/metrics` |
//! | read-only port | the same, `/pods` |
//! | `<root>/skep.sock`, mode 0600 | the same, `/v1/...` for the commands (`server/local.rs`) |

mod error;
mod health;
mod local;
mod log_query;
mod socket;
pub mod wire;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use futures::{future::BoxFuture, stream::BoxStream};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{cri, health::Board, status::Statuses, timeline::Recorder};

pub use socket::{LOCK_NAME, LockError, RootLock, SOCKET_NAME, wait_for_lock};

/// How long answers in progress may take once the agent stops. Those that follow something end by
/// themselves at once.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// How often the recorder folds what its histograms have gathered.
const UPKEEP: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Settings {
    pub healthz: Option<SocketAddr>,
    pub read_only: Option<SocketAddr>,
}

/// What the agent says of itself for `/v1/status`.
pub type Describe = Arc<dyn Fn() -> wire::Description + Send + Sync>;

/// Forces one listing and tells what it found; the error is for the user.
pub type Relist =
    Arc<dyn Fn() -> BoxFuture<'static, Result<wire::ListingReport, String>> + Send + Sync>;

/// Begins to stop all pods, and tells how it goes until all are gone; the agent exits afterwards.
/// Asked for again, it tells of the same stopping.
pub type Down = Arc<dyn Fn() -> BoxStream<'static, wire::DownProgress> + Send + Sync>;

/// The parts that answers come from.
#[derive(Clone)]
pub struct Links {
    pub statuses: Statuses,
    pub board: Board,
    pub timeline: Recorder,
    pub cri: cri::Client,
    pub metrics: PrometheusHandle,
    /// `Dirs::pod_logs`: where logs lie by upstream's layout while the runtime cannot be asked.
    pub pod_logs: PathBuf,
    pub describe: Describe,
    pub relist: Relist,
    pub down: Down,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} ({port})")]
    Listen {
        port: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot make the local socket {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot serve {what}")]
    Serve {
        what: &'static str,
        source: io::Error,
    },
}

/// Takes the addresses. The local socket replaces a stale one, which is safe because `lock` shows
/// that no other agent lives on this root.
pub async fn bind(settings: &Settings, lock: &RootLock, links: Links) -> Result<Task, Error> {
    let listen = async |port, address: Option<SocketAddr>| match address {
        None => Ok(None),
        Some(address) => TcpListener::bind(address)
            .await
            .map(Some)
            .map_err(|source| Error::Listen {
                port,
                address,
                source,
            }),
    };
    let healthz = listen("--healthz-port", settings.healthz).await?;
    let read_only = listen("--read-only-port", settings.read_only).await?;
    let path = lock.root().join(SOCKET_NAME);
    let local = socket::bind(&path).map_err(|source| Error::Socket {
        path: path.clone(),
        source,
    })?;
    Ok(Task {
        healthz,
        read_only,
        local,
        socket: path,
        links,
    })
}

/// Bound, and not yet served.
#[derive(Debug)]
pub struct Task {
    healthz: Option<TcpListener>,
    read_only: Option<TcpListener>,
    local: UnixListener,
    socket: PathBuf,
    links: Links,
}

impl Task {
    /// Where the healthz port ended up; for tests that ask for port 0.
    pub fn healthz_address(&self) -> Option<SocketAddr> {
        self.healthz.as_ref()?.local_addr().ok()
    }

    /// The same of the read-only port.
    pub fn read_only_address(&self) -> Option<SocketAddr> {
        self.read_only.as_ref()?.local_addr().ok()
    }

    /// Serves until `stop`; then answers in progress are finished and the socket is removed.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let health = health::router(&self.links);
        let pods = health.clone().merge(health::pods_router(&self.links));
        let local = pods.clone().merge(local::router(&self.links, stop.clone()));
        let upkeep = upkeep(self.links.metrics.clone(), stop.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            upkeep.await;
            Ok(())
        });
        if let Some(listener) = self.healthz {
            serving.spawn(serve("the healthz port", listener, health, stop.clone()));
        }
        if let Some(listener) = self.read_only {
            serving.spawn(serve("the read-only port", listener, pods, stop.clone()));
        }
        serving.spawn(serve("the local socket", self.local, local, stop.clone()));
        let all = async {
            while let Some(served) = serving.join_next().await {
                match served {
                    Ok(result) => result?,
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                }
            }
            Ok(())
        };
        let deadline = async {
            stop.cancelled().await;
            tokio::time::sleep(FINISH_WITHIN).await;
        };
        let result = tokio::select! {
            result = all => result,
            () = deadline => Ok(()),
        };
        // The lock is still held: nobody else's socket can stand there.
        let _ = std::fs::remove_file(&self.socket);
        result
    }
}

async fn serve<L>(
    what: &'static str,
    listener: L,
    router: Router,
    stop: CancellationToken,
) -> Result<(), Error>
where
    L: axum::serve::Listener,
    L::Addr: std::fmt::Debug,
{
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
        .map_err(|source| Error::Serve { what, source })
}

async fn upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}

#[cfg(test)]
mod tests;
