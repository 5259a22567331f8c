//! Lines of text to requests, and answers to lines: JSON-RPC 2.0, one object in a line.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::nearest;
use crate::{Failure, Kind, Request};

/// A request with the caller's name for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What the answer is to have as its `id`: a number, a text or null.
    pub id: Value,
    /// What is asked.
    pub request: Request,
}

/// Why a line is no call, with the `id` as far as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct NoCall {
    /// As of [`Call`]; null where it could not be read.
    pub id: Value,
    /// Why.
    pub failure: Failure,
}

/// The object of a request, JSON-RPC 2.0, section 4.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    jsonrpc: Option<String>,
    #[serde(default)]
    id: Value,
    method: Option<String>,
    params: Option<Value>,
}

/// Reads a line, with or without its newline.
///
/// # Errors
/// It is no JSON, no request, or one that there is not.
pub fn parse(line: &[u8]) -> Result<Call, Box<NoCall>> {
    let no_call = |id: Value, failure| Box::new(NoCall { id, failure });
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        let words = format!(
            "the line is no JSON: {error}; expected an object such as {EXAMPLE}, in one line"
        );
        no_call(Value::Null, Failure::new(Kind::NotJson, words))
    })?;
    let id = match value.get("id") {
        Some(id @ (Value::Number(_) | Value::String(_))) => id.clone(),
        _ => Value::Null,
    };
    let frame: Frame = serde_json::from_value(value).map_err(|error| {
        let words = format!("this is no request: {error}; expected an object such as {EXAMPLE}");
        no_call(id.clone(), Failure::new(Kind::NoRequest, words))
    })?;
    let request = request(frame);
    request
        .map_err(|failure| no_call(id.clone(), failure))
        .map(|request| Call { id, request })
}

/// What a request may look like.
const EXAMPLE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"status"}"#;

fn request(frame: Frame) -> Result<Request, Failure> {
    let no_request = |words: String| Failure::new(Kind::NoRequest, words);
    match frame.jsonrpc.as_deref() {
        Some("2.0") => {}
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), |other| format!("{other:?}"));
            return Err(
                no_request(format!("jsonrpc is {found}; expected \"2.0\"")).of_field("jsonrpc")
            );
        }
    }
    if !matches!(frame.id, Value::Null | Value::Number(_) | Value::String(_)) {
        return Err(
            no_request("id is neither a number nor a text; write \"id\":1".to_owned())
                .of_field("id"),
        );
    }
    let Some(method) = frame.method else {
        return Err(
            no_request(format!("method is missing; expected one as in {EXAMPLE}"))
                .of_field("method"),
        );
    };
    let params = frame.params.unwrap_or_else(|| json!({}));
    if !params.is_object() {
        let words = "params is not an object; write \"params\":{\"NAME\":VALUE}";
        return Err(Failure::new(Kind::WrongParameters, words).of_field("params"));
    }
    let whole = json!({"method": method, "params": params});
    serde_json::from_value(whole).map_err(|error| not_taken(&method, &error.to_string()))
}

/// Why serde did not take a method or its parameters, in our words.
fn not_taken(method: &str, message: &str) -> Failure {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let name = quoted.next().unwrap_or_default().to_owned();
    let known: Vec<&str> = quoted.collect();
    let near = nearest(&name, known.iter().copied());
    let next = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", known.join(", ")),
    };
    if message.starts_with("unknown variant") && name == method {
        let failure = Failure::new(
            Kind::UnknownMethod,
            format!("there is no method `{name}`; {next}"),
        );
        return failure
            .of_field("method")
            .of_value(name)
            .allowed(known.join(", "))
            .meant(near);
    }
    let wrong = |words: String| Failure::new(Kind::WrongParameters, words);
    if message.starts_with("unknown field") {
        let next = match known.is_empty() {
            true => "it has none".to_owned(),
            false => next,
        };
        return wrong(format!("{method} has no parameter `{name}`; {next}"))
            .of_field(name)
            .allowed(known.join(", "))
            .meant(near);
    }
    if message.starts_with("missing field") {
        return wrong(format!(
            "{method} needs the parameter `{name}`; write it into \"params\""
        ))
        .of_field(name);
    }
    wrong(format!(
        "{method}: {message}; look at its parameters in the reference of the protocol"
    ))
}

/// The line that answers a call.
#[must_use]
pub fn answer(id: &Value, result: Result<&Value, &Failure>) -> String {
    let mut line = match result {
        Ok(value) => json!({"jsonrpc": "2.0", "id": id, "result": value}),
        Err(failure) => json!({"jsonrpc": "2.0", "id": id, "error": failure}),
    }
    .to_string();
    line.push('\n');
    line
}

/// The line that asks.
#[must_use]
pub fn ask(id: u64, request: &Request) -> String {
    // A request is an object with text keys: there is nothing in it that JSON has not.
    let mut line = serde_json::to_value(request).unwrap_or_default();
    if let Value::Object(fields) = &mut line {
        fields.insert("jsonrpc".to_owned(), json!("2.0"));
        fields.insert("id".to_owned(), json!(id));
    }
    format!("{line}\n")
}

/// What an answer says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answered {
    pub(crate) id: Value,
    #[serde(default)]
    pub(crate) result: Option<Value>,
    #[serde(default)]
    pub(crate) error: Option<Failure>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{answer, ask, parse};
    use crate::{AddNamespace, Kind, Request};

    fn failure(line: &str) -> crate::Failure {
        parse(line.as_bytes()).unwrap_err().failure
    }

    #[test]
    fn a_line_is_a_request_with_or_without_parameters() {
        let call = parse(br#"{"jsonrpc":"2.0","id":7,"method":"status"}"#).unwrap();
        assert_eq!((call.id, call.request), (json!(7), Request::Status {}));
        let line = r#"{"jsonrpc":"2.0","id":"a","method":"namespace.add","params":{"subsystem":"nqn.x","ram":"1GiB"}}"#;
        let call = parse(line.as_bytes()).unwrap();
        let wanted = AddNamespace {
            subsystem: "nqn.x".to_owned(),
            ram: Some("1GiB".to_owned()),
            ..AddNamespace::default()
        };
        assert_eq!(
            (call.id, call.request),
            (json!("a"), Request::NamespaceAdd(wanted))
        );
    }

    #[test]
    fn what_is_asked_is_read_as_the_same() {
        let reload = Request::Reload { discard: true };
        let line = ask(3, &reload);
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
        let call = parse(line.as_bytes()).unwrap();
        assert_eq!((call.id, call.request), (json!(3), reload));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        assert_eq!(failure("{").data.kind, Some(Kind::NotJson));
        assert_eq!(failure("[]").data.kind, Some(Kind::NoRequest));
        assert_eq!(
            failure(r#"{"id":1,"method":"status"}"#)
                .data
                .field
                .as_deref(),
            Some("jsonrpc")
        );
        let of = |rest: &str| failure(&format!(r#"{{"jsonrpc":"2.0","id":1,{rest}}}"#));
        let unknown = of(r#""method":"statsu""#);
        assert_eq!(unknown.data.kind, Some(Kind::UnknownMethod));
        assert_eq!(
            unknown.to_string(),
            "there is no method `statsu`; did you mean `status`?"
        );
        let unknown = of(r#""method":"namespace.add","params":{"subsytem":"a"}"#);
        assert_eq!(
            unknown.to_string(),
            "namespace.add has no parameter `subsytem`; did you mean `subsystem`?"
        );
        let unknown = of(r#""method":"status","params":{"verbose":true}"#);
        assert_eq!(
            unknown.to_string(),
            "status has no parameter `verbose`; it has none"
        );
        let missing = of(r#""method":"subsystem.remove""#);
        assert_eq!(missing.data.field.as_deref(), Some("nqn"));
        assert!(
            of(r#""method":"status","params":[1]"#)
                .to_string()
                .starts_with("params is not")
        );
        let wrong = of(r#""method":"reload","params":{"discard":"yes"}"#);
        assert_eq!(wrong.data.kind, Some(Kind::WrongParameters));
        assert!(wrong.to_string().contains("expected a boolean"), "{wrong}");
    }

    #[test]
    fn an_id_that_was_read_is_answered() {
        let no_call = parse(br#"{"jsonrpc":"2.0","id":9,"method":"nothing"}"#).unwrap_err();
        assert_eq!(no_call.id, json!(9));
        let line = answer(&no_call.id, Err(&no_call.failure));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["id"], &value["error"]["code"]),
            (&json!(9), &json!(-32601))
        );
        let no_call = parse(br#"{"jsonrpc":"2.0","id":[1],"method":"status"}"#).unwrap_err();
        assert_eq!(no_call.id, Value::Null);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
