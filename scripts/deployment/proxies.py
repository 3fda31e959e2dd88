# nginx and Caddy in front of a Poncho, with the files of packaging/ and what a user replaces in them.
#
# Called by scripts/try_deployment.py. Each proxy must pass keys, bodies and streams, keep /metrics inside, tell Poncho of
# clients that hang up, and wait through a silence that is longer than proxies wait by themselves. That nginx without
# our timeout fails here shows that the trial notices. Proxies run as this process's user, on the loopback, without files elsewhere.
import concurrent.futures
import contextlib
import http.client
import os
import signal
import subprocess
import time

from deployment.poncho import Client, ROOT, answers, free_port, running, wait_until

# nginx gives up after 60 seconds; no other common proxy waits less.
SILENCE = 70
MAX_BODY = 32 << 20


def certificate(folder):
    """One for localhost, which clients here trust by its file."""
    pem, key = folder / "site.pem", folder / "site.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    return pem, key


def replaced(text, pairs):
    """What a user does to a file: each text must be there to be replaced."""
    for old, new in pairs.items():
        assert old in text, f"the file has no {old!r}"
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def started(command, port, folder):
    """A proxy in the foreground, until it listens and until it is no longer wanted."""
    with (folder / "proxy.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
    try:
        wait_until(lambda: answers(port) or process.poll() is not None, "the proxy's start")
        assert process.poll() is None, (folder / "proxy.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def nginx(folder, upstream, tls, changes=None):
    """nginx with our site, as its own configuration includes it."""
    folder.mkdir()
    port = free_port()
    own = {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "llm.example.com;": "localhost;"}
    own |= {"127.0.0.1:8080": f"127.0.0.1:{upstream}"}
    own |= {"/etc/ssl/llm.example.com.pem": str(tls[0]), "/etc/ssl/llm.example.com.key": str(tls[1])}
    (folder / "site.conf").write_text(replaced((ROOT / "packaging/nginx.conf").read_text(), own | (changes or {})))
    # The rest is what Debian's own file has, in this folder.
    spool = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;\n" if os.geteuid() == 0 else ""
    whole = f"{user}daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
    whole += f"http {{\naccess_log off;\n{spool}include {folder}/site.conf;\n}}\n"
    (folder / "nginx.conf").write_text(whole)
    command = ["nginx", "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    said = checked.stdout + checked.stderr
    assert checked.returncode == 0 and "[warn]" not in said, f"nginx -t says: {said}"
    with started(command, port, folder):
        yield Client(port, tls[0])


@contextlib.contextmanager
def caddy(folder, upstream, tls):
    """Caddy with our site; its certificate is ours, because nobody outside can vouch for localhost."""
    folder.mkdir()
    port = free_port()
    own = {"llm.example.com {": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {tls[0]} {tls[1]}"}
    own |= {"127.0.0.1:8080": f"127.0.0.1:{upstream}"}
    site = replaced((ROOT / "packaging/Caddyfile").read_text(), own)
    # Without these it would listen on port 80 and on the port of its own administration, which others may use.
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{site}")
    ours = ["--config", str(ROOT / "packaging/Caddyfile"), "--adapter", "caddyfile"]
    for command in (["caddy", "validate", *ours], ["caddy", "fmt", "--diff", str(ROOT / "packaging/Caddyfile")]):
        env = {**os.environ, "HOME": str(folder)}
        checked = subprocess.run(command, capture_output=True, text=True, env=env)
        assert checked.returncode == 0, f"{' '.join(command)} says: {checked.stdout}{checked.stderr}"
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with started(command, port, folder):
        yield Client(port, tls[0])


def passes_keys(client):
    for headers, wanted in (({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"x-api-key": client.key}, 200), (None, 200)):
        status, text = client.call("GET", "/v1/models", headers=headers)
        assert status == wanted, f"with {headers} /v1/models answered {status}: {text}"
    assert client.call("GET", "/health", headers={})[0] == 200, "/health needs no key"


def keeps_metrics_inside(client):
    for path in ("/metrics", "/metrics?x=1", "/%6Detrics"):
        status, _ = client.call("GET", path)
        assert status == 404, f"{path} answered {status} to a client outside"


def passes_bodies(client):
    """As large as Poncho takes them, and no larger; Poncho's own refusal says that it got the body."""
    for size, wanted in ((MAX_BODY, 400), (MAX_BODY + 1, 413)):
        frame = b'{"no_messages": ""}'
        body = frame.replace(b'""', b'"' + b"a" * (size - len(frame)) + b'"')
        try:
            status, text = client.call("POST", "/v1/chat/completions", body)
        except OSError as broken:
            # A server that refuses need not read to the end; then the connection breaks while the client still sends.
            assert wanted == 413, f"a body of {size} bytes was cut off: {broken}"
            continue
        assert status == wanted, f"a body of {size} bytes was answered {status}: {text[:200]}"
        assert wanted != 400 or b"messages" in text, f"a body of {size} bytes did not reach Poncho: {text[:200]}"


def pieces(answer, events):
    """Reads `events` events of a stream and returns in how many pieces they came."""
    count = read = 0
    while read < events:
        piece = answer.read1(1 << 16)
        assert piece, f"the stream ended after {read} events"
        count += 1
        read += piece.count(b"data: ")
    return count, read


def streams(client):
    """Token by token: a proxy that collects bytes sends many events in one piece."""
    with client.chat(80, stream=True) as answer:
        count, events = pieces(answer, 40)
        assert answer.status == 200 and count * 4 > events, f"{events} events came in {count} pieces"
        rest = b"".join(iter(lambda: answer.read1(1 << 16), b""))
    assert rest.rstrip().endswith(b"data: [DONE]"), f"the stream ended with {rest[-200:]}"


def tells_of_hanging_up(client, poncho):
    """The stream would go on for a minute or more if Poncho did not notice."""
    wait_until(lambda: poncho.in_flight() == 0, "a quiet server")
    answer = client.chat(6000, stream=True)
    pieces(answer, 3)
    assert poncho.in_flight() == 1, "the stream runs"
    answer.close()
    wait_until(lambda: poncho.in_flight() == 0, "the end of a stream after its client has left")


def came_to_its_end(client, stream):
    """Whether a reply arrived whole; a proxy that loses patience answers 504 or cuts it off."""
    try:
        with client.chat(300, stream=stream) as answer:
            text = answer.read()
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == 200 and (text.rstrip().endswith(b"data: [DONE]") if stream else b'"usage"' in text)


def outlast(clients, server, poncho):
    """Lets Poncho be silent for longer than proxies wait; says for each client which of its two replies arrived."""
    wait_until(lambda: poncho.in_flight() == 0, "a quiet server")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        begin = lambda client, stream: pool.submit(came_to_its_end, client, stream)
        replies = [(begin(client, True), begin(client, False)) for client in clients]
        wait_until(lambda: poncho.in_flight() == 2 * len(clients), "the start of all requests")
        # As quiet as the longest prompt: a stopped process sends not even comments.
        os.kill(server.pid, signal.SIGSTOP)
        try:
            time.sleep(SILENCE)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        return [(stream.result(), whole.result()) for stream, whole in replies]


def try_common(client, poncho):
    for trial in (passes_keys, keeps_metrics_inside, passes_bodies, streams):
        trial(client)
        print(f"  {trial.__name__}", flush=True)
    tells_of_hanging_up(client, poncho)
    print("  tells_of_hanging_up", flush=True)


def try_nginx(folder):
    tls = certificate(folder)
    without = {"proxy_read_timeout 1h;": ""}
    with running(folder) as (server, poncho), nginx(folder / "nginx", poncho.port, tls) as client:
        try_common(client, poncho)
        with nginx(folder / "impatient", poncho.port, tls, without) as impatient:
            ours, theirs = outlast([client, impatient], server, poncho)
    assert ours == (True, True), f"after {SILENCE} s of silence stream and whole reply arrived: {ours}"
    assert theirs == (False, False), f"a silence of {SILENCE} s does not try nginx's patience: {theirs}"


def try_caddy(folder):
    tls = certificate(folder)
    with running(folder) as (server, poncho), caddy(folder / "caddy", poncho.port, tls) as client:
        try_common(client, poncho)
        [ours] = outlast([client], server, poncho)
    assert ours == (True, True), f"after {SILENCE} s of silence stream and whole reply arrived: {ours}"
