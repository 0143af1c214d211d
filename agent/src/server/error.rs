//! An answer that says what is wrong: a status code and `{"message": ...}`.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::wire::Refused;
use crate::telemetry::chain;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub message: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// With the error's causes, which its own text leaves out.
    pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, chain(error).to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Refused {
            message: self.message,
        };
        (self.status, Json(body)).into_response()
    }
}
