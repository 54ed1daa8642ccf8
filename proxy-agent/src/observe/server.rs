//! The HTTP endpoints.

use super::health::Report;
use super::{Health, Metrics};
use anyhow::{Context, Result};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Serves /healthz, /livez and /readyz; returns once the socket listens.
pub async fn serve_health(
    address: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
) -> Result<()> {
    let healthz = {
        let (health, metrics) = (health.clone(), metrics.clone());
        move || async move {
            let response = answer(health.report());
            metrics.proxy_healthz(response.status().as_u16());
            response
        }
    };
    let ready = health.clone();
    let livez = move || async move {
        let response = answer(health.report_of_proxy());
        metrics.proxy_livez(response.status().as_u16());
        response
    };
    let readyz = move || async move {
        if ready.synced() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz));
    serve(address, router, "--healthz-bind-address").await
}

/// Serves /metrics; returns once the socket listens.
pub async fn serve_metrics(address: SocketAddr, metrics: Arc<Metrics>) -> Result<()> {
    // Many endpoints take a while to write out: not on the threads of the loop.
    let handler = move || async move {
        let encoded = tokio::task::spawn_blocking(move || metrics.encode()).await;
        match encoded.map_err(anyhow::Error::from).flatten() {
            Ok(text) => (
                [(
                    header::CONTENT_TYPE,
                    "text/plain; version=0.0.4; charset=utf-8",
                )],
                text,
            )
                .into_response(),
            Err(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response()
            }
        }
    };
    serve(
        address,
        Router::new().route("/metrics", get(handler)),
        "--metrics-bind-address",
    )
    .await
}

fn answer(report: Report) -> Response {
    let status = if report.is_good() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, Json(report)).into_response()
}

/// Connections of one endpoint at a time.
const CONNECTIONS_MAX: usize = 256;

/// How long a connection may last, and an answer on it: probes and scrapes
/// connect anew.
const CONNECTION_MAX: Duration = Duration::from_secs(10);

async fn serve(address: SocketAddr, router: Router, flag: &str) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listening on {address}: choose another with {flag} (kube-proxy may still run)")
    })?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(accept(listener, router, room));
    Ok(())
}

/// Answers for ever. Connections that find no room are closed at once; all of
/// them end with this future.
pub(super) async fn accept(listener: TcpListener, router: Router, room: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: others close in the meantime.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if let Ok(permit) = room.clone().try_acquire_owned() {
            let router = router.clone();
            connections.spawn(async move {
                let _permit = permit;
                answer_on(stream, router).await;
            });
        }
    }
}

/// A client that goes away in the middle is its own business.
async fn answer_on(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let mut serving = pin!(
        http1::Builder::new()
            // As Go writes them: not every load balancer ignores case.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service)
    );
    if timeout(CONNECTION_MAX, serving.as_mut()).await.is_err() {
        // An answer that is under way is finished.
        serving.as_mut().graceful_shutdown();
        let _ = timeout(CONNECTION_MAX, serving).await;
    }
}
