//! Endpoints: text to a socket's path, and a connector that does not storm a runtime which is away.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, time::Instant};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::Service;

use super::Error;

/// KRT-19: reconnecting waits from 100 ms to 3 s.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// KRT-19: a connection that is not made by then has failed.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The socket that `unix:///path` names. A bare path is taken too, as upstream does (it says that
/// this is deprecated); everything else is refused.
pub(super) fn parse(endpoint: &str) -> Result<PathBuf, Error> {
    let refused = |expected| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        expected,
    };
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some((_, _)) => return Err(refused("only unix sockets are supported: unix:///path")),
        None => match endpoint.strip_prefix("unix:") {
            Some(path) => path,
            None => {
                if endpoint.starts_with('/') {
                    tracing::warn!(
                        endpoint,
                        "endpoints without a scheme are deprecated: use unix:///path"
                    );
                }
                endpoint
            }
        },
    };
    if !path.starts_with('/') || path.len() == 1 {
        return Err(refused("expected unix:// and an absolute path of a socket"));
    }
    Ok(PathBuf::from(path))
}

/// A channel that connects at the first call. Must be called within a tokio runtime.
pub(super) fn channel(path: &Path) -> Channel {
    let connector = Connector {
        path: path.into(),
        state: Arc::default(),
    };
    // The authority that other clients of unix sockets send; servers do not look at it.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

/// Connects to a unix socket; after a failure, answers at once with that failure until a wait is
/// over. Calls thus fail fast while the runtime is away, as upstream's do.
#[derive(Clone)]
struct Connector {
    path: Arc<Path>,
    state: Arc<Mutex<BackOff>>,
}

#[derive(Default)]
struct BackOff {
    failures: u32,
    last: Option<(Instant, io::ErrorKind, String)>,
}

impl BackOff {
    /// The last failure while its wait is not over.
    fn refusal(&self, now: Instant) -> Option<io::Error> {
        let (at, kind, text) = self.last.as_ref()?;
        (now < *at + wait(self.failures)).then(|| io::Error::new(*kind, text.clone()))
    }

    fn note(&mut self, error: Option<&io::Error>, now: Instant) {
        match error {
            None => *self = Self::default(),
            Some(error) => {
                self.failures = self.failures.saturating_add(1);
                self.last = Some((now, error.kind(), error.to_string()));
            }
        }
    }
}

fn wait(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { path, state } = self.clone();
        Box::pin(async move {
            let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(error) = lock().refusal(Instant::now()) {
                return Err(error);
            }
            let connected = tokio::time::timeout(CONNECT_DEADLINE, UnixStream::connect(&path))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(|error| {
                    io::Error::new(
                        error.kind(),
                        format!("connect to {}: {error}", path.display()),
                    )
                });
            lock().note(connected.as_ref().err(), Instant::now());
            connected.map(TokioIo::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("unix:///run/a.sock", "/run/a.sock")]
    #[case("unix:/run/a.sock", "/run/a.sock")]
    #[case("/run/a.sock", "/run/a.sock")]
    fn an_endpoint_names_a_socket(#[case] endpoint: &str, #[case] path: &str) {
        assert_eq!(parse(endpoint).unwrap(), Path::new(path));
    }

    #[rstest]
    #[case(
        "tcp://127.0.0.1:1234",
        "only unix sockets are supported: unix:///path"
    )]
    #[case("npipe:////./pipe/x", "only unix sockets are supported: unix:///path")]
    #[case("", "expected unix:// and an absolute path of a socket")]
    #[case("run/a.sock", "expected unix:// and an absolute path of a socket")]
    #[case("unix://", "expected unix:// and an absolute path of a socket")]
    #[case("unix:///", "expected unix:// and an absolute path of a socket")]
    fn another_endpoint_is_refused_by_name(#[case] endpoint: &str, #[case] expected: &str) {
        assert_eq!(
            parse(endpoint).unwrap_err().to_string(),
            format!("runtime endpoint {endpoint:?}: {expected}")
        );
    }

    #[test]
    fn waits_double_from_100_ms_to_3_s() {
        let waits: Vec<_> = (1..=7).map(|n| wait(n).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(wait(u32::MAX), LONGEST_WAIT);
    }
}
