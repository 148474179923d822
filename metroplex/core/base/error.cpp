#include "base/error.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace metroplex::base {

Error::Error(std::string room, const std::string& message)
    : std::runtime_error("[" + room + "] " + message), room_(std::move(room)) {}

std::string message_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return std::string(error.what()).substr(ours ? ours->room().size() + 3 : 0);
}

void throw_error(const char* room, const std::string& message) { throw Error(room, message); }

void throw_assert(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(concat(file, ":", line, ": a bug in metroplex: ", condition, " does not hold",
                                message.empty() ? "" : "; ", message));
}

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace metroplex::base
