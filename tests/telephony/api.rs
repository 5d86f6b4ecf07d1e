//! A carrier's HTTP interface that writes down what it is asked, and answers as it is told.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use ring::hmac;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
};

use crate::rig::{SECRET, soon};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub authorization: String,
    pub content_type: String,
    pub body: String,
}

impl Asked {
    /// A field of its form.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.body.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

type Answers = Arc<Mutex<VecDeque<(u16, &'static str, String)>>>;

pub struct Api {
    pub address: SocketAddr,
    pub asked: mpsc::UnboundedReceiver<Asked>,
    answers: Answers,
    held: Held,
}

/// The next request waits for this.
type Held = Arc<Mutex<Option<oneshot::Receiver<()>>>>;

impl Api {
    /// Answers each request with 200, unless something else is prepared.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::unbounded_channel();
        let answers = Answers::default();
        let held = Held::default();
        let (prepared, holds) = (answers.clone(), held.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tell, prepared, holds) = (tell.clone(), prepared.clone(), holds.clone());
                tokio::spawn(async move { serve(stream, &tell, &prepared, &holds).await });
            }
        });
        Self { address, asked, answers, held }
    }

    /// The next request is answered once what is returned is used, or dropped.
    pub fn hold(&self) -> oneshot::Sender<()> {
        let (release, released) = oneshot::channel();
        *self.held.lock().unwrap() = Some(released);
        release
    }

    /// Prepares the answer to the next request: status, headers (each with its line end), body.
    pub fn answer(&self, status: u16, headers: &'static str, body: &str) -> &Self {
        self.answers.lock().unwrap().push_back((status, headers, body.to_owned()));
        self
    }

    pub async fn next(&mut self) -> Asked {
        soon("a request to the carrier", self.asked.recv()).await.unwrap()
    }

    pub fn is_quiet(&mut self) -> bool {
        self.asked.try_recv().is_err()
    }
}

async fn serve(
    mut stream: TcpStream,
    tell: &mpsc::UnboundedSender<Asked>,
    prepared: &Answers,
    held: &Held,
) {
    while let Some((head, body)) = message(&mut stream).await {
        let mut line = head.lines().next().unwrap_or_default().split(' ');
        let header = |name: &str| header(&head, name);
        let asked = Asked {
            method: line.next().unwrap_or_default().to_owned(),
            path: line.next().unwrap_or_default().to_owned(),
            authorization: header("authorization"),
            content_type: header("content-type"),
            body,
        };
        let next = prepared.lock().unwrap().pop_front();
        let wait = held.lock().unwrap().take();
        let _ = tell.send(asked);
        if let Some(released) = wait {
            let _ = released.await;
        }
        let (status, headers, body) = next.unwrap_or((200, "", "{}".into()));
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Head and body of the next message.
async fn message(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length: usize = header(&head, "content-length").parse().unwrap_or(0);
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, String::from_utf8_lossy(&bytes[end..end + length]).into_owned()))
}

fn header(head: &str, name: &str) -> String {
    let found = head.lines().filter_map(|line| line.split_once(':'));
    let mut found = found.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Asks the bridge: status and body.
pub async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &str,
) -> (u16, String) {
    let mut stream = soon("a socket", TcpStream::connect(address)).await.unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    soon("room on the wire", stream.write_all(request.as_bytes())).await.unwrap();
    let (head, body) = soon("an answer", message(&mut stream)).await.unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// A webhook as Twilio signs it (HMAC-SHA1 over the address and the sorted fields).
pub async fn twilio_asks(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
) -> (u16, String) {
    let mut signed = format!("https://example.com{path}");
    let mut sorted = fields.to_vec();
    sorted.sort_unstable();
    for (name, value) in sorted {
        signed.push_str(name);
        signed.push_str(value);
    }
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let headers = [
        ("content-type", "application/x-www-form-urlencoded".to_owned()),
        ("x-twilio-signature", base64_simd::STANDARD.encode_to_string(tag.as_ref())),
    ];
    ask(address, "POST", path, &headers, &body).await
}
