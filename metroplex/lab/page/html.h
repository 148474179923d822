// Writes the page of metroplex report: one HTML file without references to other files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "page/run_file.h"

namespace metroplex::page {

struct PageOptions {
  int reload_seconds = 0;  // 0: the page does not reload itself
};

std::string make_page(const std::vector<const RunData*>& runs, const PageOptions& options);

// Escapes text for HTML content and for quoted attributes.
std::string escape_html(std::string_view text);
// Returns JSON that is safe inside a <script> element. Bytes that are not UTF-8 become U+FFFD.
std::string script_json(const Json& json);

}  // namespace metroplex::page
