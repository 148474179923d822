#include "comm/report.h"

#include <sstream>

namespace metroplex::comm {

std::string encode(const Report& report) {
  const std::string cause = report.cause.substr(0, 3000);
  return (report.own ? "own " : "peer ") + std::to_string(report.exit_code) + " " + std::to_string(cause.size()) +
         "\n" + cause;
}

std::optional<Report> decode_report(const std::string& text) {
  const size_t line = text.find('\n');
  if (line == std::string::npos) return std::nullopt;
  std::istringstream head(text.substr(0, line));
  std::string whose;
  Report report;
  size_t size = 0;
  if (!(head >> whose >> report.exit_code >> size) || text.size() - line - 1 < size) return std::nullopt;
  report.own = whose == "own";
  report.cause = text.substr(line + 1, size);
  return report;
}

}  // namespace metroplex::comm
