//! End-to-end, conformance and interoperation tests.
