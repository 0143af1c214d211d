//! A proxy between agent and runtime that passes every call, and breaks the event stream alone when
//! it is told to.

use std::path::Path;

use axum::{Router, body::Body, extract::Request, response::Response};
use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    service::Routes,
    transport::{Channel, Endpoint, Server},
};
use tower::ServiceExt as _;

/// Ends with its value.
pub(crate) struct Proxy {
    is_cut: watch::Sender<bool>,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// Must be called within a tokio runtime.
    pub(crate) fn start(socket: &Path, runtime: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket's folder is there");
        let runtime = runtime.to_owned();
        let connector = tower::service_fn(move |_: http::Uri| {
            let runtime = runtime.clone();
            async move { UnixStream::connect(runtime).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let (is_cut, cut_rx) = watch::channel(false);
        let router = Router::new()
            .fallback(move |request: Request| pass_on(channel.clone(), request, cut_rx.clone()));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            Server::builder()
                .add_routes(Routes::from(router))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .expect("the proxy serves");
        });
        Self {
            is_cut,
            _serving: serving,
        }
    }

    /// Breaks the event stream, and refuses a new one until [`Self::mend_events`].
    pub(crate) fn cut_events(&self) {
        self.is_cut.send_replace(true);
    }

    pub(crate) fn mend_events(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn pass_on(channel: Channel, request: Request, mut cut: watch::Receiver<bool>) -> Response {
    let is_events = request.uri().path().ends_with("/GetContainerEvents");
    if is_events && *cut.borrow() {
        return trailers_only();
    }
    let answer = channel.oneshot(request.map(tonic::body::Body::new)).await;
    let answer = match answer {
        Ok(answer) => answer.map(Body::new),
        Err(error) => {
            println!("proxy: {error}");
            return trailers_only();
        }
    };
    if !is_events {
        return answer;
    }
    answer.map(|body| {
        let is_cut = async move {
            // The proxy's end is the stream's, too.
            cut.wait_for(|is_cut| *is_cut).await.ok();
        };
        let frames = BodyStream::new(body)
            .take_until(Box::pin(is_cut))
            .chain(stream::iter([Ok(Frame::trailers(unavailable()))]));
        Body::new(StreamBody::new(frames))
    })
}

fn unavailable() -> HeaderMap {
    let code = (tonic::Code::Unavailable as i32).to_string();
    HeaderMap::from_iter([(
        header::HeaderName::from_static("grpc-status"),
        HeaderValue::from_str(&code).expect("a number"),
    )])
}

fn trailers_only() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().extend(unavailable());
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
