//! What can go wrong with a call to the runtime, and the calls' names.

use std::{fmt, time::Duration};

use tonic::{Code, Status};

/// A call of the CRI. `Display` is its name in the CRI; the static text is upstream's
/// `operation_type` (KRT-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Call {
    Version,
    Status,
    RuntimeConfig,
    UpdateRuntimeConfig,
    #[strum(serialize = "run_podsandbox")]
    RunPodSandbox,
    #[strum(serialize = "stop_podsandbox")]
    StopPodSandbox,
    #[strum(serialize = "remove_podsandbox")]
    RemovePodSandbox,
    #[strum(serialize = "podsandbox_status")]
    PodSandboxStatus,
    #[strum(serialize = "list_podsandbox")]
    ListPodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ContainerStatus,
    ListContainers,
    ExecSync,
    ReopenContainerLog,
    GetContainerEvents,
    ImageStatus,
    PullImage,
    ListImages,
    RemoveImage,
    ImageFsInfo,
}

impl Call {
    /// The value of the label `operation_type`.
    pub fn operation(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A failed call, or an endpoint that cannot be one. Cheap enough to clone, so that caches can
/// hold it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("runtime endpoint {endpoint:?}: {expected}")]
    Endpoint {
        endpoint: String,
        expected: &'static str,
    },
    /// The runtime refused, or could not be asked.
    #[error("{call}: {message} ({code:?})")]
    Refused {
        call: Call,
        code: Code,
        message: String,
    },
    /// The runtime answered with something that cannot be used (KRT-28).
    #[error("{call}: {what} in the runtime's answer")]
    Answer { call: Call, what: &'static str },
}

impl Error {
    pub(super) fn from_status(call: Call, status: &Status) -> Self {
        // Statuses that the client made itself out of a broken connection: other clients call
        // them Unavailable, whatever the way it broke, and say why.
        let Some(source) = std::error::Error::source(status) else {
            return Self::Refused {
                call,
                code: status.code(),
                message: status.message().to_owned(),
            };
        };
        let mut deepest = source;
        while let Some(next) = deepest.source() {
            deepest = next;
        }
        let code = match status.code() {
            Code::Unknown | Code::Internal | Code::Cancelled => Code::Unavailable,
            code => code,
        };
        Self::Refused {
            call,
            code,
            message: format!("connection error: {deepest}"),
        }
    }

    pub(super) fn deadline(call: Call, after: Duration) -> Self {
        Self::Refused {
            call,
            code: Code::DeadlineExceeded,
            message: format!("no answer within {after:?}"),
        }
    }

    /// The gRPC code; none where there was no call or an unusable answer.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Endpoint { .. } | Self::Answer { .. } => None,
        }
    }

    /// The sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// The runtime is not there.
    pub fn is_unavailable(&self) -> bool {
        self.code() == Some(Code::Unavailable)
    }

    /// No answer in time: the call may still have an effect.
    pub fn is_deadline(&self) -> bool {
        self.code() == Some(Code::DeadlineExceeded)
    }

    /// The runtime is too old for this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// The bare gRPC message, as upstream shows it in container events ("Error: ...").
    pub fn message(&self) -> String {
        match self {
            Self::Refused { message, .. } => message.clone(),
            Self::Endpoint { .. } | Self::Answer { .. } => self.to_string(),
        }
    }

    /// As a gRPC client in Go prints it; upstream's events about sandboxes and pulls have it so.
    pub fn rpc_text(&self) -> String {
        match self {
            Self::Refused { code, message, .. } => {
                let code = match code {
                    Code::Cancelled => "Canceled".to_owned(),
                    code => format!("{code:?}"),
                };
                format!("rpc error: code = {code} desc = {message}")
            }
            Self::Endpoint { .. } | Self::Answer { .. } => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_types_are_upstreams_words() {
        let words = [
            Call::Version,
            Call::RunPodSandbox,
            Call::PodSandboxStatus,
            Call::ListPodSandbox,
            Call::ReopenContainerLog,
            Call::ImageFsInfo,
            Call::GetContainerEvents,
            Call::UpdateRuntimeConfig,
        ]
        .map(Call::operation);
        assert_eq!(
            words,
            [
                "version",
                "run_podsandbox",
                "podsandbox_status",
                "list_podsandbox",
                "reopen_container_log",
                "image_fs_info",
                "get_container_events",
                "update_runtime_config",
            ]
        );
    }

    #[test]
    fn an_error_has_the_bare_message_and_the_text_of_a_go_client() {
        let status = Status::not_found("no such container");
        let error = Error::from_status(Call::ContainerStatus, &status);
        assert!(error.is_not_found());
        assert_eq!(error.message(), "no such container");
        assert_eq!(
            error.rpc_text(),
            "rpc error: code = NotFound desc = no such container"
        );
        assert_eq!(
            error.to_string(),
            "ContainerStatus: no such container (NotFound)"
        );
    }
}
