//! HTTP over the agent's local socket.

use std::{io, path::PathBuf};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, task::JoinSet};

use crate::server::wire::Refused;

/// The longest line of an answer that is read line by line; the agent's own are far shorter.
const MAX_LINE: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no agent is running: nothing answers at {}", socket.display())]
    NoAgent { socket: PathBuf },
    #[error("no permission for the agent's socket {}: only its owner may use it (try sudo)", socket.display())]
    Denied { socket: PathBuf },
    #[error("cannot reach the agent at {}", socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the agent's answer broke off")]
    Talk { source: hyper::Error },
    #[error("a request that cannot be sent")]
    Request { source: http::Error },
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    #[error("the agent's answer cannot be read (is it of another version?)")]
    Answer { source: serde_json::Error },
    #[error("the agent's answer has a line of more than {MAX_LINE} bytes")]
    LongLine,
}

/// Where the agent is asked; a connection is made for each request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let answer = self.stream(Method::GET, path).await?;
        parse(&answer.whole().await?)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(|source| Error::Answer { source })?;
        let answer = self.send(Method::POST, path, body).await?;
        parse(&answer.whole().await?)
    }

    /// An answer that is read as it comes.
    pub(crate) async fn stream(&self, method: Method, path: &str) -> Result<Answer, Error> {
        self.send(method, path, Vec::new()).await
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer, Error> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.connect_error(error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|source| Error::Talk { source })?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // What goes wrong here is also told to the one who reads the answer.
            let _ = connection.await;
        });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "skep")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|source| Error::Request { source })?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|source| Error::Talk { source })?;
        let status = response.status();
        let answer = Answer {
            body: response.into_body(),
            rest: Vec::new(),
            _driver: driver,
        };
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.whole().await?;
        let message = serde_json::from_slice::<Refused>(&body).map_or_else(
            |_| String::from_utf8_lossy(&body).into_owned(),
            |refused| refused.message,
        );
        Err(Error::Refused { status, message })
    }

    fn connect_error(&self, error: io::Error) -> Error {
        let socket = self.socket.clone();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NoAgent { socket },
            io::ErrorKind::PermissionDenied => Error::Denied { socket },
            _ => Error::Connect {
                socket,
                source: error,
            },
        }
    }
}

/// An answer's body.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Incoming,
    /// The start of a line.
    rest: Vec<u8>,
    _driver: JoinSet<()>,
}

impl Answer {
    /// The next piece; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|source| Error::Talk { source })?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The next line, as JSON; none at the end.
    pub(crate) async fn next_line<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return parse(&line).map(Some);
            }
            if self.rest.len() > MAX_LINE {
                return Err(Error::LongLine);
            }
            match self.next().await? {
                Some(piece) => self.rest.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }

    /// A whole line has been received already.
    pub(crate) fn has_line(&self) -> bool {
        self.rest.contains(&b'\n')
    }

    async fn whole(self) -> Result<Vec<u8>, Error> {
        let Self { body, _driver, .. } = self;
        let whole = body
            .collect()
            .await
            .map_err(|source| Error::Talk { source })?;
        Ok(whole.to_bytes().into())
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|source| Error::Answer { source })
}

/// A path with a query; values are encoded.
pub(crate) fn with_query(path: &str, query: &[(&str, String)]) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(query)
        .finish();
    format!("{path}?{query}")
}
