#include "device/cublas_workspace.h"

#include <regex>

namespace metroplex::device {

int64_t cublas_workspace_bytes(int capability, const std::optional<std::string>& setting) {
  constexpr int64_t kKib = 1024;
  const int64_t usual = capability == 90 || capability == 0 ? 32 * kKib * kKib : (2 * 4096 + 8 * 16) * kKib;
  if (!setting) return usual;
  static const std::regex pair(":([0-9]{1,7}):([0-9]{1,7})");
  int64_t sum = 0;
  const std::sregex_iterator first(setting->begin(), setting->end(), pair), end;
  for (std::sregex_iterator found = first; found != end; ++found)
    sum += std::stoll(found->str(1)) * kKib * std::stoll(found->str(2));
  return first == end ? usual : sum;
}

}  // namespace metroplex::device
