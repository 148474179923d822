#include "upper/verify_precision.h"

#include <cstdio>
#include <optional>

#include "program.h"
#include "run_config.h"
#include "upper/launch.h"
#include "verify/precision_check.h"

namespace metroplex::apps {
namespace {

std::string error_text(const std::optional<double>& error) {
  if (!error) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", *error);
  return text;
}

}  // namespace

int verify_precision(const config::Config& requested) {
  const config::Config config = checked_config(verify::precision_check_config(requested), 1);
  verify::PrecisionCheck check;
  launch_ranks(config, {}, [&](const comm::World& world) {
    check = verify::check_precision(config, world, config.model.vocab_size);
  });
  const std::string plain = config.precision.params_dtype.text();
  const bool rounds = config.precision.rounds_operands();
  const std::string low = rounds ? "rounded" : "";
  std::printf("errors relative to float64    hidden states        gradients\n%-24s %10s %10s %10s %10s\n", "",
              plain.c_str(), low.c_str(), plain.c_str(), low.c_str());
  for (size_t i = 0; i < check.plain.blocks.size(); ++i) {
    const verify::BlockErrors &of_plain = check.plain.blocks[i], &of_low = check.rounded.blocks[i];
    std::printf("%-24s %10s %10s %10s %10s\n", of_plain.name.c_str(), error_text(of_plain.states).c_str(),
                rounds ? error_text(of_low.states).c_str() : "", error_text(of_plain.gradients).c_str(),
                rounds ? error_text(of_low.gradients).c_str() : "");
  }
  std::printf("loss %.8g in float64; error in %s %.2e", check.exact_loss, plain.c_str(), check.plain.loss);
  if (rounds) std::printf(", rounded %.2e", check.rounded.loss);
  std::printf("\n");
  return kExitOk;
}

}  // namespace metroplex::apps
