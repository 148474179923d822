// Conformance with cases recorded from real programs. A runner takes one file of vectors and accounts for every
// case in it: passed, failed (with what differed) or waiting for a part that is not built yet. Never silent.
#pragma once

#include <cmath>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace metroplex::conformance {

using Json = nlohmann::json;

class Report {
 public:
  // Runs one case: it passes when `body` returns "", fails with what it returns or throws.
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
  // A case that belongs to a part which does not exist yet.
  void wait(const std::string& name, const std::string& for_what) { waiting.push_back(name + ": " + for_what); }

  int passed = 0;
  std::vector<std::string> failures, waiting;
};

// "" when equal, else "got ..., expected ..." (shortened).
inline std::string compare(const Json& got, const Json& expected) {
  if (got == expected) return "";
  return "got " + got.dump().substr(0, 300) + ", expected " + expected.dump().substr(0, 300);
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
