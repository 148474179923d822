// Conformance with cases recorded from real programs. A runner processes one file of vectors and accounts for every
// case in it: passed, failed (with the difference) or waiting for an unsupported part. It never skips a case
// silently.
#pragma once

#include <cmath>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace metroplex::conformance {

using Json = nlohmann::json;

// The real program's message for a rejection: "error", "config_error", "initialize_model_parallel_error", ...
inline bool is_refusal_key(const std::string& key) {
  constexpr std::string_view kEnd = "error";
  return key.size() >= kEnd.size() && key.compare(key.size() - kEnd.size(), kEnd.size(), kEnd) == 0;
}

// An error in place of values means that the real program rejected the case. The error is in the case or in an object
// among its values.
inline bool is_refusal(const Json& json) {
  if (!json.is_object()) return false;
  for (const auto& [key, value] : json.items()) {
    if (is_refusal_key(key) && !value.is_null()) return true;
    if (value.is_object() && value.contains("error") && !value.at("error").is_null()) return true;
  }
  return false;
}

class Report {
 public:
  // Runs one case: it passes if `body` returns "", and fails with the returned or thrown message.
  void check(const std::string& name, const std::function<std::string()>& body) {
    std::string problem;
    try {
      problem = body();
    } catch (const std::exception& error) { problem = std::string("threw: ") + error.what(); }
    if (problem.empty()) {
      ++passed;
    } else {
      failures.push_back(name + ": " + problem);
    }
  }
  // As above for a case that may record a rejection: then `body` must throw base::Error, the product's only kind of
  // rejection.
  void check(const std::string& name, const Json& recorded, const std::function<std::string()>& body) {
    if (!is_refusal(recorded)) return check(name, body);
    check(name, [&]() -> std::string {
      try {
        body();
      } catch (const base::Error&) { return ""; } catch (const std::exception&) {
      }  // null in place of values
      return "accepted, expected a refusal: " + recorded.dump().substr(0, 300);
    });
  }
  void wait(const std::string& name, const std::string& for_what) { waiting.push_back(name + ": " + for_what); }

  int passed = 0;
  std::vector<std::string> failures, waiting;
};

// "" if equal, else "got ..., expected ..." (shortened).
inline std::string compare(const Json& got, const Json& expected) {
  if (got == expected) return "";
  return "got " + got.dump().substr(0, 300) + ", expected " + expected.dump().substr(0, 300);
}

// `got` against recorded[key], a list that may be truncated: if recorded.length exceeds the list, the list is a
// prefix of ours, which must have that many entries.
inline std::string compare_list(const Json& got, const Json& recorded, const std::string& key) {
  const Json& expected = recorded.at(key);
  const Json length = recorded.value("length", Json());
  const bool cut = expected.is_array() && got.is_array() && length.is_number_integer() &&
                   length.get<int64_t>() > static_cast<int64_t>(expected.size()) && got.size() > expected.size();
  const std::string problem =
      cut ? compare(Json(Json::array_t(got.begin(), got.begin() + static_cast<int64_t>(expected.size()))), expected)
          : compare(got, expected);
  return problem.empty() ? "" : key + ": " + problem;
}

inline std::string compare_near(double got, double expected, double absolute, double relative = 0) {
  if (std::abs(got - expected) <= absolute + relative * std::abs(expected)) return "";
  return "got " + Json(got).dump() + ", expected " + Json(expected).dump();
}

// The lists of a vector file may be absent or empty in another directory of the same form.
inline Json cases(const Json& file, const std::string& key) {
  return file.contains(key) ? file.at(key) : Json::array();
}

using Runner = void (*)(const Json& file, Report& report);

}  // namespace metroplex::conformance
