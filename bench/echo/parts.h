// The sections of the report, each printed as Markdown.
#pragma once

#include <string>

#include "files/expert_trace.h"
#include "models.h"
#include "systems.h"

namespace metroplex::bench {

struct Options {
  int ranks = 64, slots = 2, steps = 200, warm_up = 100;
  int64_t hidden = 0, ffn = 0;  // of the experts; 0: DeepSeek-V3's
  bool all = false;             // tables of all traces; else of a few
  std::string svg_folder;       // "": no figures
  std::string svg_name = "echo";
};

void print_assumptions(const Model& model, const Options& options);
// Synthetic traces: an overview, then tables.
void print_synthetic(const Model& model, const Options& options);
void print_recorded(const files::ExpertTrace& trace, const std::string& path, const Model& model,
                    const Options& options);
void print_ultra_ep(const Options& options);
void print_gain(const Options& options);
void print_replicas(const Options& options);

}  // namespace metroplex::bench
