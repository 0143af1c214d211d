use std::sync::{Arc, Mutex};

use rstest::rstest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::*;
use crate::{
    config::Strictness,
    source::{Refusal, Set},
    types::pod::SourceKind,
};

const WEB: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "c", "image": "i:1"}]}}"#;

/// A server that answers with what it was last told, and the source that asks it.
struct Exchange {
    answer: Arc<Mutex<String>>,
    requests: Arc<Mutex<Vec<String>>>,
    sets: mpsc::Receiver<Set>,
    refusals: watch::Receiver<Vec<Refusal>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

fn answer(status: &str, more: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

impl Exchange {
    async fn start(first: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new(first));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (sets_tx, sets) = mpsc::channel(3);
        let (refusals_tx, refusals) = watch::channel(Vec::new());
        let settings = HttpSource {
            url: format!("http://user:secret@127.0.0.1:{port}/pods"),
            headers: vec![("X-Token".to_owned(), "secret".to_owned())],
            period: Duration::from_millis(20),
        };
        let rules = Rules {
            node_name: "n".to_owned(),
            strictness: Strictness::Refuse,
        };
        let outlet = Outlet {
            kind: SourceKind::Http,
            sets: sets_tx,
            refusals: refusals_tx,
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(
            listener,
            answer.clone(),
            requests.clone(),
            stop.clone(),
        ));
        tasks.spawn(Source::new(settings, rules, outlet).run(stop.clone()));
        Self {
            answer,
            requests,
            sets,
            refusals,
            stop,
            tasks,
        }
    }

    fn answer(&self, answer: String) {
        *self.answer.lock().unwrap() = answer;
    }

    /// The names of the next set.
    async fn set(&mut self) -> Vec<String> {
        let set = tokio::time::timeout(Duration::from_secs(20), self.sets.recv());
        let set = set.await.expect("a set arrives").expect("the source runs");
        let names = set.pods.into_iter().map(|pod| pod.metadata.name.unwrap());
        names.collect()
    }

    async fn refused(&mut self, wanted: &str) {
        let is_wanted = |all: &Vec<Refusal>| match all.first() {
            Some(refusal) => !wanted.is_empty() && refusal.message.contains(wanted),
            None => wanted.is_empty(),
        };
        let arrives = self.refusals.wait_for(is_wanted);
        drop(
            tokio::time::timeout(Duration::from_secs(20), arrives)
                .await
                .unwrap_or_else(|_| panic!("{wanted:?} was not said")),
        );
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

async fn serve(
    listener: TcpListener,
    answer: Arc<Mutex<String>>,
    requests: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
) {
    loop {
        let connection = tokio::select! {
            () = stop.cancelled() => return,
            connection = listener.accept() => connection,
        };
        let (mut stream, _) = connection.unwrap();
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        let text = if request.starts_with("GET /moved ") {
            self::answer("200 OK", "", WEB)
        } else {
            answer.lock().unwrap().clone()
        };
        requests.lock().unwrap().push(request);
        let _ = stream.write_all(text.as_bytes()).await;
    }
}

#[tokio::test]
async fn pods_come_from_a_url_and_stay_while_it_fails() {
    let mut exchange = Exchange::start(answer("200 OK", "", WEB)).await;
    assert_eq!(exchange.set().await, ["web-n"]);
    let request = exchange.requests.lock().unwrap()[0].clone();
    assert!(
        request.to_lowercase().contains("x-token: secret"),
        "{request}"
    );

    exchange.answer(answer("500 Oops", "", "no"));
    exchange
        .refused("answered 500 Internal Server Error: expected 200 OK")
        .await;
    let refusal = exchange.refusals.borrow()[0].clone();
    assert!(refusal.keeps_last);
    assert!(!refusal.origin.contains("secret"), "{}", refusal.origin);

    exchange.answer(answer("200 OK", "", &WEB.replace("i:1", "")));
    exchange
        .refused("spec.containers[0].image: Required value")
        .await;

    exchange.answer(answer("200 OK", "", WEB));
    exchange.refused("").await;
    // It differs from the invalid body, so it is news.
    assert_eq!(exchange.set().await, ["web-n"]);
    exchange.stop().await;
}

#[tokio::test]
async fn an_empty_body_takes_the_pods_away_until_the_content_changes() {
    let mut exchange = Exchange::start(answer("200 OK", "", WEB)).await;
    assert_eq!(exchange.set().await, ["web-n"]);
    exchange.answer(answer("200 OK", "", ""));
    exchange
        .refused("is empty: expected a Pod or a PodList")
        .await;
    assert_eq!(exchange.set().await, Vec::<String>::new());
    exchange.answer(answer("200 OK", "", WEB));
    exchange.refused("its pods come back when it changes").await;
    exchange.answer(answer("200 OK", "", &WEB.replace("web", "api")));
    loop {
        // Empty sets may have been sent at each period.
        let set = exchange.set().await;
        if !set.is_empty() {
            assert_eq!(set, ["api-n"]);
            break;
        }
    }
    exchange.refused("").await;
    exchange.stop().await;
}

#[rstest]
#[case("Location: /moved\r\n")]
#[case("Location: moved\r\n")]
#[tokio::test]
async fn redirects_are_followed(#[case] location: &str) {
    let mut exchange = Exchange::start(answer("302 Found", location, "")).await;
    assert_eq!(exchange.set().await, ["web-n"]);
    exchange.stop().await;
}

#[tokio::test]
async fn redirects_without_end_are_given_up() {
    let mut exchange = Exchange::start(answer("302 Found", "Location: /\r\n", "")).await;
    exchange.refused("redirects more than 10 times").await;
    exchange.stop().await;
}

#[rstest]
#[case("http://a/b/c", "d", "http://a/b/d")]
#[case("http://a/b/c", "/d?e", "http://a/d?e")]
#[case("https://a:1/b", "//c/d", "https://c/d")]
#[case("http://a/b", "https://c/d", "https://c/d")]
fn a_location_is_read_from_where_one_is(
    #[case] from: &str,
    #[case] location: &str,
    #[case] to: &str,
) {
    let uri = joined_uri(&from.parse().unwrap(), location).unwrap();
    assert_eq!(uri.to_string(), to);
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_an_error() {
    let mut exchange = Exchange::start(answer(
        "302 Found",
        "Location: https://127.0.0.1:1/\r\n",
        "",
    ))
    .await;
    exchange
        .refused("could not be fetched: no answer: client error (Connect)")
        .await;
    exchange.stop().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = Arc::new(Mutex::new(answer("200 OK", "", WEB)));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, plain, Arc::default(), stop.clone()));
    let settings = HttpSource {
        url: format!("https://127.0.0.1:{port}/"),
        headers: Vec::new(),
        period: Duration::from_secs(1),
    };
    let error = with_causes(&get(&settings).await.unwrap_err());
    // The second is a machine without certificates.
    assert!(
        error.contains("InvalidContentType") || error.contains("no root certificates"),
        "{error}"
    );
    stop.cancel();
}
