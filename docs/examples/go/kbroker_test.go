package payments

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// object is an object of JSON.
type object = map[string]any

// kbroker is a broker in a process of its own, with a fresh directory. A test controls it through its control port.
type kbroker struct {
	t                           *testing.T
	directory, address, control string
	mutex                       sync.Mutex // of the fields below
	process                     *exec.Cmd
	ended                       chan struct{}
	isClosed                    bool
}

func startKbroker(t *testing.T) *kbroker {
	broker := &kbroker{t: t, directory: t.TempDir(), address: "127.0.0.1:0", control: "127.0.0.1:0"}
	broker.start()
	t.Cleanup(func() {
		broker.mutex.Lock()
		broker.isClosed = true
		broker.mutex.Unlock()
		broker.kill()
	})
	return broker
}

// start starts the process, and waits until it is ready. After the first start, the ports stay the same.
func (broker *kbroker) start() {
	broker.mutex.Lock()
	defer broker.mutex.Unlock()
	if broker.isClosed {
		return
	}
	process := exec.Command("kbroker", "serve", "--log-json", "--listen", broker.address, "--control", broker.control,
		"--data-dir", broker.directory, "--set", "group.initial.rebalance.delay.ms=0")
	log, err := process.StderrPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		broker.t.Fatal(err)
	}
	ready, ended := make(chan [2]string, 1), make(chan struct{})
	var lines bytes.Buffer
	go func() {
		defer close(ended)
		var control string
		for scanner := bufio.NewScanner(log); scanner.Scan(); {
			var entry struct{ Event, Address string }
			_ = json.Unmarshal(scanner.Bytes(), &entry)
			switch entry.Event {
			case "control":
				control = entry.Address
			case "ready":
				ready <- [2]string{entry.Address, control}
			default:
				fmt.Fprintln(&lines, scanner.Text())
			}
		}
		_ = process.Wait()
	}()
	broker.process, broker.ended = process, ended
	select {
	case found := <-ready:
		if broker.address != found[0] { // the first start
			broker.address, broker.control = found[0], found[1]
		}
	case <-ended:
		broker.t.Fatalf("kbroker has ended:\n%s", &lines)
	}
}

// keepRunning starts the process again whenever it ends, from now on.
func (broker *kbroker) keepRunning() {
	go func() {
		for {
			broker.mutex.Lock()
			ended, isClosed := broker.ended, broker.isClosed
			broker.mutex.Unlock()
			if isClosed {
				return
			}
			<-ended
			broker.start()
		}
	}()
}

// kill kills the process. The directory stays.
func (broker *kbroker) kill() {
	broker.mutex.Lock()
	defer broker.mutex.Unlock()
	_ = broker.process.Process.Kill()
	<-broker.ended
}

// ask sends a request to the control port, and returns its answer.
func (broker *kbroker) ask(method, path string, body object) object {
	var content []byte
	if body != nil {
		content, _ = json.Marshal(body)
	}
	request, err := http.NewRequest(method, "http://"+broker.control+path, bytes.NewReader(content))
	if err != nil {
		broker.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		broker.t.Fatal(err)
	}
	defer answer.Body.Close()
	var found object
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil || answer.StatusCode >= 300 {
		broker.t.Fatalf("%s %s: %v %v", method, path, found["error"], err)
	}
	return found
}

// rule adds a rule: what happens to the operations that reach a point. It returns the path of the rule.
func (broker *kbroker) rule(point, action string, choice object) string {
	found := broker.ask("POST", "/rules", object{"point": point, "action": action, "select": choice})
	return fmt.Sprintf("/rules/%v", found["id"])
}

// awaitMatch waits until a rule has matched an operation.
func (broker *kbroker) awaitMatch(rule string) {
	if broker.ask("GET", rule+"?matched=1&wait_ms=30000", nil)["matched"] == 0.0 {
		broker.t.Fatalf("%s has matched nothing for 30 s", rule)
	}
}

// advance moves the clock of the broker, and waits until all that is due has happened.
func (broker *kbroker) advance(span time.Duration) {
	broker.ask("POST", "/clock", object{"advance_ms": span.Milliseconds()})
}
