//! HTTP to the agent, one connection a request.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::patient;

/// No answer of the agent's takes longer, not even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn get(socket: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    ask(socket, Method::GET, path).await
}

pub(super) async fn post(socket: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    ask(socket, Method::POST, path).await
}

async fn ask(socket: &Path, method: Method, path: &str) -> anyhow::Result<Vec<u8>> {
    let stream = UnixStream::connect(socket).await.context("connect")?;
    let (status, body) = timeout(patient(LIMIT), exchange(stream, method, path)).await??;
    let text = || String::from_utf8_lossy(&body).into_owned();
    ensure!(status == 200, "{path}: {status} {}", text());
    Ok(body)
}

/// Status and text of a page on a port of this machine.
pub(super) async fn page(port: u16, path: &str) -> anyhow::Result<(u16, String)> {
    let stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .context("connect")?;
    let (status, body) = timeout(patient(LIMIT), exchange(stream, Method::GET, path)).await??;
    Ok((status, String::from_utf8(body)?))
}

async fn exchange<S>(stream: S, method: Method, path: &str) -> anyhow::Result<(u16, Vec<u8>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "skep")
        .body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, body.to_vec()))
    };
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
