// The rendezvous store: its operations, and clients that are not part of the run.
#include "comm/backends/run_store.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "comm/backends/store_messages.h"
#include "comm/network.h"
#include "support/error_of.h"

namespace metroplex::comm::run_store_test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;

constexpr const char* kSecret = "of this test";

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

struct Server {
  uint16_t port = 0;
  std::unique_ptr<StoreServer> server;

  explicit Server(size_t most_bytes = 1 << 20) {
    const auto [fd, number] = listen_at("127.0.0.1");
    port = number;
    server = std::make_unique<StoreServer>(OwnedFd(fd), kSecret, most_bytes);
  }
  c10::intrusive_ptr<StoreClient> client(const std::string& secret = kSecret) const {
    return c10::make_intrusive<StoreClient>(StoreClient::Address{"127.0.0.1", port, secret, 2s, 5s});
  }
  int raw() const {
    std::string error;
    return connect_to("127.0.0.1", port, 2s, error);
  }
};

void send_bytes(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

std::string message(char kind, const std::string& text) {
  WatchLink link;
  link.put(kind, text);
  return link.out;
}

// All bytes that the server sends until it closes the connection; nullopt if it stays open for `limit`.
std::optional<std::string> until_closed(int fd, std::chrono::milliseconds limit) {
  std::string text;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    char buffer[1024];
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size > 0) text.append(buffer, static_cast<size_t>(size));
    else if (size == 0 || errno != EAGAIN) return text;
    else std::this_thread::sleep_for(5ms);
  }
  return std::nullopt;
}

TEST(RunStore, OperationsAreThoseOfC10d) {
  const Server server;
  const auto one = server.client(), two = server.client();
  one->set("a", bytes(std::string("x\0y", 3)));
  EXPECT_EQ(two->get("a"), bytes(std::string("x\0y", 3)));
  EXPECT_TRUE(two->check({"a"}));
  EXPECT_FALSE(two->check({"a", "b"}));
  EXPECT_EQ(one->add("n", 5), 5);
  EXPECT_EQ(two->add("n", -7), -2);
  EXPECT_EQ(two->get("n"), bytes("-2"));
  EXPECT_EQ(one->compareSet("c", bytes("old"), bytes("new")), bytes("old"));  // absent, but a value is expected
  EXPECT_FALSE(one->check({"c"}));
  EXPECT_EQ(one->compareSet("c", {}, bytes("first")), bytes("first"));
  EXPECT_EQ(two->compareSet("c", {}, bytes("second")), bytes("first"));
  EXPECT_EQ(two->compareSet("c", bytes("first"), bytes("second")), bytes("second"));
  EXPECT_EQ(one->get("c"), bytes("second"));
  EXPECT_EQ(one->getNumKeys(), 3);
  EXPECT_TRUE(one->deleteKey("c"));
  EXPECT_FALSE(one->deleteKey("c"));
  EXPECT_EQ(one->getNumKeys(), 2);
  const std::string large(3 << 18, 'l');
  one->set("large", bytes(large));
  EXPECT_EQ(two->get("large"), bytes(large));
}

TEST(RunStore, WaitsForAKeyUntilTheTimeout) {
  const Server server;
  const auto one = server.client(), two = server.client();
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    two->set("late", bytes("value"));
  });
  EXPECT_EQ(one->get("late"), bytes("value"));
  later.join();
  EXPECT_THROW(one->wait({"never"}, 50ms), c10::DistStoreError);
}

TEST(RunStore, AnotherSecretIsRefusedOnBothSides) {
  const Server server;
  const std::string refusal = test::error_of([&] { server.client("another"); });
  EXPECT_NE(refusal.find("METROPLEX_SECRET differs between ranks"), std::string::npos) << refusal;
  // A server without the secret can read no value.
  const auto [fd, port] = listen_at("127.0.0.1");
  std::thread fake([fd = fd] {
    int peer = -1;
    for (int i = 0; i < 500 && peer < 0; ++i, std::this_thread::sleep_for(5ms)) peer = ::accept(fd, nullptr, nullptr);
    send_bytes(peer, message('n', "0") + message('w', prove("another", "")));
    until_closed(peer, 5s);
    ::close(peer);
  });
  const StoreClient::Address address{"127.0.0.1", port, kSecret, 2s, 5s};
  EXPECT_THROW(c10::make_intrusive<StoreClient>(address), base::Error);
  fake.join();
  ::close(fd);
}

TEST(RunStore, UnprovenClientsReadAndStoreNothing) {
  const Server server;
  const auto rank = server.client();
  rank->set("key", bytes("hidden value"));
  const std::string request = message('g', pack({"key"}));
  for (const std::string& sent :
       {request, message('h', "0 " + prove(kSecret, "store client 0 0")) + request, message('h', "nothing"),
        message('s', pack({"key", "theirs"})), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("h\xff\xff\xff\x7f"), std::string(100000, 'x')}) {
    const int fd = server.raw();
    ASSERT_GE(fd, 0);
    send_bytes(fd, sent);
    const auto answer = until_closed(fd, 3s);
    ASSERT_TRUE(answer) << testing::PrintToString(sent.substr(0, 40));
    EXPECT_EQ(answer->find("hidden value"), std::string::npos);
    ::close(fd);
  }
  const int silent = server.raw();
  EXPECT_TRUE(until_closed(silent, 8s)) << "a client that sends nothing keeps its connection";
  ::close(silent);
  EXPECT_EQ(rank->get("key"), bytes("hidden value"));
}

TEST(RunStore, ValuesAreLimited) {
  const Server server(1000);
  const auto one = server.client(), two = server.client();
  one->set("a", Bytes(900));
  one->set("a", Bytes(950));  // replaces the value
  EXPECT_THROW(one->set("b", Bytes(100)), c10::DistError);
  EXPECT_THROW(one->check({"a"}), c10::DistError) << "the connection goes on";
  two->set("c", Bytes(40));
  EXPECT_THROW(server.client()->set("d", Bytes(10)), c10::DistError) << "951, 41 and 11 bytes";
  EXPECT_TRUE(two->deleteKey("c"));
  EXPECT_TRUE(two->deleteKey("a"));
  two->set("b", Bytes(998));
  EXPECT_THROW(two->add("a", 1), c10::DistError) << "more than 1000 bytes with the key";
}

TEST(RunStore, AClosedPortKeepsItsConnections) {
  const Server server;
  const auto rank = server.client();
  const int unproven = server.raw();
  server.server->close_port();
  EXPECT_TRUE(until_closed(unproven, 2s));
  ::close(unproven);
  const int late = server.raw();
  EXPECT_LT(late, 0);
  rank->set("key", bytes("value"));
  EXPECT_EQ(rank->get("key"), bytes("value"));
}

TEST(RunStore, TheEndOfTheServerIsAnErrorOfItsClients) {
  Server server;
  const auto rank = server.client();
  server.server.reset();
  EXPECT_THROW(rank->check({"key"}), c10::DistNetworkError);
}

}  // namespace
}  // namespace metroplex::comm::run_store_test
