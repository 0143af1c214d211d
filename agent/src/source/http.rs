//! The HTTP source (SRC-04): GETs a URL at once and each `httpCheckFrequency`.
//!
//! - **State**: the last body that was not empty.
//! - **Out**: the complete set of pods when the body changes; one refusal while it can't be had.
//!
//! Whatever goes wrong, the last set stays: only an empty body takes the pods away, as upstream's.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sha2::{Digest as _, Sha256};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Outlet, Refused,
    decode::MAX_BYTES,
    manifest::{Loaded, Origin, Rules},
    problem::joined,
};
use crate::{config::HttpSource, types::clock};

/// For the whole exchange, redirects and body included.
const DEADLINE: Duration = Duration::from_secs(10);
/// A period of nothing would be a busy loop.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// Upstream's HTTP client gives up after as many.
const MAX_REDIRECTS: usize = 10;

/// What a request could die of.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the URL is not valid")]
    Url(#[source] http::Error),
    #[error("the header {0:?} is not valid")]
    Header(String),
    #[error("no root certificates could be loaded")]
    Roots(#[source] std::io::Error),
    #[error("no answer")]
    Send(#[source] hyper_util::client::legacy::Error),
    #[error("no answer within 10 s")]
    Late,
    #[error("answered {0}: expected 200 OK")]
    Status(StatusCode),
    #[error("redirects more than 10 times")]
    Redirects,
    #[error("redirects to what is no URL")]
    Location,
    #[error("the body could not be read, or is larger than 10 MiB")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The part that runs.
pub(super) struct Source {
    settings: HttpSource,
    rules: Rules,
    outlet: Outlet,
    /// Hash of the last body that was not empty, good or not.
    last: Option<[u8; 32]>,
    /// What is wrong with that body, for as long as it stays the same.
    verdict: Option<String>,
    has_pods: bool,
}

impl fmt::Debug for Source {
    // By hand: the headers may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("url", &self.shown_url())
            .finish_non_exhaustive()
    }
}

/// What one answer means.
enum Answer {
    Unchanged,
    Empty,
    Set(Loaded),
    Refused(String),
}

impl Source {
    pub(super) fn new(settings: HttpSource, rules: Rules, outlet: Outlet) -> Self {
        Self {
            settings,
            rules,
            outlet,
            last: None,
            verdict: None,
            has_pods: false,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.settings.period.max(SHORTEST_PERIOD));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let body = tokio::select! {
                () = stop.cancelled() => return,
                body = tokio::time::timeout(DEADLINE, get(&self.settings)) => body,
            };
            let body = match body.unwrap_or(Err(Error::Late)) {
                Ok(body) => body,
                Err(error) => {
                    self.refuse(Some(with_causes(&error)));
                    continue;
                }
            };
            let (set, verdict) = match self.read(&body) {
                Answer::Unchanged => (None, self.verdict.take()),
                Answer::Refused(message) => (None, Some(message)),
                Answer::Empty => {
                    self.has_pods = false;
                    self.refuse(Some("is empty: expected a Pod or a PodList".to_owned()));
                    (Some(Vec::new()), Some(BACK_AFTER_EMPTY.to_owned()))
                }
                Answer::Set(loaded) => {
                    for warning in &loaded.warnings {
                        let url = self.shown_url();
                        warn!(url, problem = %warning, "manifest accepted with a warning");
                    }
                    self.has_pods = !loaded.pods.is_empty();
                    (Some(loaded.pods), None)
                }
            };
            if !body.is_empty() {
                self.refuse(verdict.clone());
            }
            self.verdict = verdict;
            let Some(set) = set else { continue };
            tokio::select! {
                () = stop.cancelled() => return,
                is_open = self.outlet.send(set) => if !is_open { return },
            }
        }
    }

    fn read(&mut self, body: &[u8]) -> Answer {
        if body.is_empty() {
            return Answer::Empty;
        }
        let hash: [u8; 32] = Sha256::digest(body).into();
        if self.last == Some(hash) {
            return Answer::Unchanged;
        }
        self.last = Some(hash);
        match self.rules.load_pods(body, Origin::Url(&self.settings.url)) {
            Ok(loaded) => Answer::Set(loaded),
            Err(problems) => Answer::Refused(joined(&problems)),
        }
    }

    fn refuse(&self, message: Option<String>) {
        let refused = message.map(|message| Refused {
            origin: self.shown_url(),
            message,
            keeps_last: self.has_pods,
        });
        self.outlet
            .refuse(refused.into_iter().collect(), clock::wall_now());
    }

    /// The URL without user and password.
    fn shown_url(&self) -> String {
        let url = &self.settings.url;
        match url.split_once("://").map(|(scheme, rest)| {
            let end = rest.find('/').unwrap_or(rest.len());
            (scheme, rest, rest[..end].rfind('@'))
        }) {
            Some((scheme, rest, Some(at))) => format!("{scheme}://{}", &rest[at + 1..]),
            Some((_, _, None)) | None => url.clone(),
        }
    }
}

const UNREACHABLE: &str = "could not be fetched";
/// Upstream compares with the last body that was not empty: the pods stay away.
const BACK_AFTER_EMPTY: &str =
    "is as it was before it was empty: its pods come back when it changes";

fn with_causes(error: &Error) -> String {
    let mut text = format!("{UNREACHABLE}: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The body, after at most ten redirects.
async fn get(settings: &HttpSource) -> Result<Bytes, Error> {
    let mut uri: Uri = settings
        .url
        .parse()
        .map_err(|error: http::uri::InvalidUri| Error::Url(error.into()))?;
    let mut headers = headers(&settings.headers)?;
    for _ in 0..=MAX_REDIRECTS {
        let mut request = http::Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        let answer = send(request).await?;
        let status = answer.status();
        if !is_redirect(status) {
            if status != StatusCode::OK {
                return Err(Error::Status(status));
            }
            let most = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
            let body = Limited::new(answer.into_body(), most).collect().await;
            return Ok(body.map_err(Error::Body)?.to_bytes());
        }
        let location = answer.headers().get(header::LOCATION);
        let location = location.and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| joined_uri(&uri, location));
        let next = next.ok_or(Error::Location)?;
        if next.host() != uri.host() {
            // What proves who we are is for the host that it was given for.
            for secret in [
                header::AUTHORIZATION,
                header::COOKIE,
                header::WWW_AUTHENTICATE,
            ] {
                headers.remove(secret);
            }
        }
        uri = next;
    }
    Err(Error::Redirects)
}

/// A fresh client for each request: there is one in 20 s, and so certificates that were replaced
/// are seen, and no connection is held in between.
async fn send(
    request: http::Request<Empty<Bytes>>,
) -> Result<http::Response<hyper::body::Incoming>, Error> {
    let builder = Client::builder(TokioExecutor::new());
    let answer = if request.uri().scheme_str() == Some("https") {
        let connector = HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(Error::Roots)?
            .https_only()
            .enable_http1()
            .build();
        builder.build(connector).request(request).await
    } else {
        builder.build(HttpConnector::new()).request(request).await
    };
    answer.map_err(Error::Send)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

fn headers(pairs: &[(String, String)]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        // The value may be a secret: a message has the name only.
        let invalid = || Error::Header(name.clone());
        let parsed_name = HeaderName::try_from(name).map_err(|_name| invalid())?;
        let parsed_value = HeaderValue::try_from(value).map_err(|_value| invalid())?;
        headers.append(parsed_name, parsed_value);
    }
    Ok(headers)
}

/// Where a `Location` leads from a URL.
fn joined_uri(from: &Uri, location: &str) -> Option<Uri> {
    if location.contains("://") {
        return location.parse().ok();
    }
    let scheme = from.scheme_str()?;
    if location.starts_with("//") {
        return format!("{scheme}:{location}").parse().ok();
    }
    let authority = from.authority()?;
    let path = if location.starts_with('/') {
        location.to_owned()
    } else {
        let (folder, _) = from.path().rsplit_once('/')?;
        format!("{folder}/{location}")
    };
    format!("{scheme}://{authority}{path}").parse().ok()
}

#[cfg(test)]
mod tests;
